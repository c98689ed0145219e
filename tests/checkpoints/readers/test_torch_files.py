"""torch's own files, zip and stream, nested and tied, read without unpickling."""

import json
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gradwatch.analysis.weights import analyze_weights
from gradwatch.checkpoints import drift, limits, scan
from gradwatch.checkpoints.blocks import arrays_of
from gradwatch.checkpoints.readers import open_index
from gradwatch.diagnosis import diagnose
from gradwatch.errors import GradwatchError

torch.manual_seed(0)
STATE = {
    "fc.weight": torch.randn(6, 4),
    "fc.bias": torch.nn.Parameter(torch.randn(6)),
    "half": torch.randn(3, 5).half(),
    "brain": torch.randn(7).bfloat16(),
    "e4": torch.randn(9).to(torch.float8_e4m3fn),
    "e5": torch.randn(9).to(torch.float8_e5m2),
    "double": torch.randn(2, 2, dtype=torch.float64),
    "step": torch.tensor(3),
    "small": torch.tensor([-3, 7], dtype=torch.int8),
    "mask": torch.tensor([True, False]),
    "turned": torch.randn(4, 6).t(),
    "sliced": torch.arange(24, dtype=torch.float32).reshape(4, 6)[1:3, ::2],
}


@pytest.mark.parametrize("zipped", [True, False])
def test_every_type_and_view_is_read_right(tmp_path, zipped) -> None:
    path = tmp_path / "model.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=zipped)
    run = scan(path)
    assert list(run.names) == list(STATE)
    for name, tensor in STATE.items():
        exact = tensor.detach().double().numpy()
        assert run.column("weight_count", name)[0] == exact.size
        assert run.column("weight_mean", name)[0] == pytest.approx(exact.mean(), rel=1e-6, abs=1e-9)
        assert run.column("weight_std", name)[0] == pytest.approx(exact.std(), rel=1e-6, abs=1e-9)
        assert run.column("weight_min", name)[0] == exact.min()
    (subject,) = [s for s in run.subjects if s.name == "turned"]
    assert subject.shape == (6, 4)


def test_without_checksums_is_read_and_said(tmp_path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "model.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert "without checksums" in open_index(tmp_path / "model.pt").notes[0]


def test_the_model_of_a_training_checkpoint_is_found(tmp_path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(3, 4)}},
        "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), "params": [0, 1, 2, 3]}],
    }
    saved = {
        "epoch": 3,
        "model_state_dict": {f"module.{k}": v for k, v in model.state_dict().items()},
        "optimizer_state_dict": optimizer,
        "args": Path("settings"),
    }
    torch.save(saved, tmp_path / "last.pth")
    index = open_index(tmp_path / "last.pth")
    assert [t.name for t in index.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert "optimizer_state_dict" in index.left_out
    assert index.foreign == ()  # pathlib.PosixPath is known


def test_an_open_state_dict_is_taken_whole_whatever_its_names(tmp_path) -> None:
    names = ["model.embed.weight", "model.layers.0.weight", "lm_head.weight", "optimizer.x.weight"]
    torch.save({name: torch.ones(2, 2) * i for i, name in enumerate(names)}, tmp_path / "m.bin")
    assert list(scan(tmp_path / "m.bin").names) == names


def test_two_models_in_one_file_keep_their_names_apart(tmp_path) -> None:
    saved = {
        "generator": {"fc.weight": torch.ones(2, 2), "fc.bias": torch.ones(2)},
        "discriminator": {"fc.weight": torch.ones(3, 2), "fc.bias": torch.zeros(3)},
    }
    torch.save(saved, tmp_path / "gan.pt")
    assert scan(tmp_path / "gan.pt").names[2] == "discriminator.fc.weight"


def test_names_lose_their_wrappers(tmp_path) -> None:
    save_file({"_orig_mod.module.fc.weight": torch.ones(2)}, tmp_path / "m.safetensors")
    torch.save({"module._orig_mod.fc.weight": torch.ones(2)}, tmp_path / "m.pt")
    for name in ("m.safetensors", "m.pt"):
        assert scan(tmp_path / name).names == ("fc.weight",)


def test_tied_weights_are_measured_once_and_listed_under_every_name(tmp_path) -> None:
    shared = torch.randn(5, 3)
    torch.save({"emb.weight": shared, "head.weight": shared, "b": torch.ones(2)}, tmp_path / "m.pt")
    run = scan(tmp_path / "m.pt")
    emb, head, _ = run.subjects
    assert (emb.name, emb.layer, emb.tied_to) == ("emb.weight", "emb", ("head.weight",))
    assert (head.name, head.layer, head.tied_to) == ("head.weight", "head", ("emb.weight",))
    norms = run.series["weight_norm"][0]
    assert norms[0] == norms[1] == pytest.approx(shared.double().norm().item())
    assert 0 in run.histograms("weight", "head.weight")
    assert len(open_index(tmp_path / "m.pt").tensors) == 2
    assert analyze_weights(run).overall_statistics.count == 17  # a model's parameters, once


VIEWS = {
    "expanded": torch.arange(1.0, 6.0).expand(7, 5),
    "expanded in the middle": torch.randn(6, 1, 3).expand(6, 4, 3),
    "one number": torch.tensor(2.0).expand(3, 3),
    "sliding": torch.arange(10.0).unfold(0, 3, 1),
    "transposed": torch.randn(9, 4).t(),
    "every other": torch.randn(8, 9)[::2, 1::3],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("block", [1 << 22, 5])
def test_a_view_is_measured_as_torch_shows_it(tmp_path, monkeypatch, name, block) -> None:
    monkeypatch.setattr(limits, "BLOCK", block)  # rows longer than a block, too
    torch.save({"v": VIEWS[name]}, tmp_path / "m.pt")
    run = scan(tmp_path / "m.pt")
    exact = VIEWS[name].double().numpy()
    assert run.subjects[0].shape == exact.shape
    assert run.column("weight_count", "v")[0] == exact.size
    assert run.column("weight_norm", "v")[0] == pytest.approx(np.linalg.norm(exact), rel=1e-7)
    assert run.column("weight_mean", "v")[0] == pytest.approx(exact.mean(), rel=1e-6)
    held = arrays_of(open_index(tmp_path / "m.pt"))
    assert held["v"].tolist() == exact.tolist()


def test_rows_that_are_one_row_expanded_are_no_identical_units(tmp_path) -> None:
    torch.save({"positions": torch.arange(1.0, 65.0).expand(40, 64)}, tmp_path / "m.pt")
    assert diagnose(scan(tmp_path / "m.pt")).findings == ()


def test_an_index_and_a_whole_file_side_by_side_are_said(tmp_path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "model-1.safetensors")
    table = {"weight_map": {"b": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(table))
    index = open_index(tmp_path)
    assert [tensor.name for tensor in index.tensors] == ["a"]  # what transformers would load
    assert index.notes[0].startswith("model.safetensors.index.json stands beside")


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_one_shard_under_two_names_is_refused(tmp_path, link) -> None:
    torch.save({"n": 3}, tmp_path / "1.bin")
    getattr(tmp_path / "2.bin", link)(tmp_path / "1.bin")
    table = {"weight_map": {"a": "1.bin", "b": "2.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(table))
    with pytest.raises(GradwatchError, match=r"'1.bin' and '2.bin' are one file"):
        scan(tmp_path)


def test_names_in_what_is_beside_the_model_of_a_distributed_checkpoint_are_noted(tmp_path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings(action="ignore"):
        dcp.save({"w": torch.ones(2), "note": Fraction(1, 2)}, checkpoint_id=tmp_path, no_dist=True)
    assert open_index(tmp_path).foreign == ("fractions.Fraction",)


def test_a_lone_tensor_and_a_list_have_names(tmp_path) -> None:
    torch.save(torch.ones(3), tmp_path / "one.pt")
    torch.save([torch.ones(3), torch.zeros(2)], tmp_path / "two.pt")
    assert scan(tmp_path / "one.pt").names == ("tensor",)
    assert scan(tmp_path / "two.pt").names == ("0", "1")


def test_kinds_we_do_not_measure_are_listed(tmp_path) -> None:
    sparse = torch.eye(3).to_sparse()
    torch.save({"a": torch.ones(2), "s": sparse, "c": torch.ones(2) + 1j}, tmp_path / "m.pt")
    index = open_index(tmp_path / "m.pt")
    assert [t.name for t in index.tensors] == ["a"]
    assert set(index.left_out) == {"s", "c"}


def test_torchscript_is_refused(tmp_path) -> None:
    with warnings.catch_warnings(action="ignore"):
        torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "m.pt")
    with pytest.raises(GradwatchError, match="TorchScript"):
        open_index(tmp_path / "m.pt")


def test_sharded_bin_files_are_one_checkpoint(tmp_path) -> None:
    torch.save({"a": torch.ones(2, 2)}, tmp_path / "pytorch_model-1.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "pytorch_model-2.bin")
    table = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    assert scan(tmp_path).names == ("a", "b")


def test_a_distributed_checkpoint_is_read(tmp_path) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"model": {"w": torch.randn(6, 4), "b": torch.randn(4).bfloat16()}, "opt": {"lr": 1.0}}
    with warnings.catch_warnings(action="ignore"):
        dcp.save(state, checkpoint_id=tmp_path / "c", no_dist=True)
    run = scan(tmp_path / "c")
    assert run.names == ("b", "w")
    exact = state["model"]["w"].double().numpy()
    assert run.column("weight_norm", "w")[0] == pytest.approx(np.linalg.norm(exact), rel=1e-6)


def test_the_steps_of_a_folder_of_checkpoints_are_in_order(tmp_path) -> None:
    for step in (100, 20, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
        torch.save({"w": torch.full((2, 2), float(step))}, tmp_path / f"checkpoint-{step}/m.pt")
    run = scan(tmp_path)
    assert run.steps.tolist() == [3, 20, 100]
    assert run.column("weight_mean", "w").tolist() == [3, 20, 100]
    hashes = run.integers("weight_hash")[:, 0]
    assert len(set(hashes.tolist())) == 3


def test_a_list_of_checkpoints_without_numbers_counts_from_zero(tmp_path) -> None:
    paths = []
    for name in ("first", "second"):
        torch.save({"w": torch.ones(2, 2), name: torch.ones(1)}, tmp_path / f"{name}.pt")
        paths.append(tmp_path / f"{name}.pt")
    run = scan(paths)
    assert run.steps.tolist() == [0, 1]
    hashes = run.integers("weight_hash")[:, run.index("w")]
    assert hashes[0] == hashes[1] != 0
    assert run.state("weight_mean")[:, run.index("second")].tolist() == [1, 0]


TWO_RANKS = """
import sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
rank, store, folder, seed = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(seed)
w, v = torch.randn(65, 8), torch.randn(10, 7)
v[3] = 0
state = {"w": distribute_tensor(w, mesh, [Shard(0)]), "v": distribute_tensor(v, mesh, [Shard(1)])}
dcp.save({"model": state}, checkpoint_id=folder)
dist.barrier()  # a rank that leaves while the other still talks to it makes gloo abort
dist.destroy_process_group()
"""


def saved_by_two_ranks(folder: Path, seed: int) -> Path:
    store = folder.with_suffix(".store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(rank), str(store), str(folder), str(seed)],
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    return folder


@pytest.mark.long
@pytest.mark.timeout(600)
def test_uneven_shards_of_two_ranks_join(tmp_path) -> None:
    one = saved_by_two_ranks(tmp_path / "one", 0)
    two = saved_by_two_ranks(tmp_path / "two", 1)
    torch.manual_seed(0)
    w, v = torch.randn(65, 8), torch.randn(10, 7)
    v[3] = 0
    run = scan(one)
    assert run.info["files"] == 2
    for name, tensor in (("w", w), ("v", v)):
        exact = np.linalg.norm(tensor.double().numpy())
        assert run.column("weight_norm", name)[0] == pytest.approx(exact, rel=1e-6)
    assert run.column("weight_zero_rows", "v")[0] == 1
    torch.save({"w": w, "v": v}, tmp_path / "whole.pt")
    same = drift(tmp_path / "whole.pt", one)
    assert {t.name: t.moved for t in same.tensors} == {"w": False}
    assert set(same.not_compared) == {"v"}
    assert all(t.moved for t in drift(one, two).tensors)
