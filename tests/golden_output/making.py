"""Makes the runs and checkpoints whose outputs are held: always the same numbers, into one folder.

    python -m tests.golden_output.making FOLDER

Everything goes through doors a user has (`gradwatch.watch`, the launcher's variables, files that
torch, numpy and safetensors write), so that the insides may be renamed freely. The one exception
is `damage`, which breaks checksummed records of a run's files as `docs/format.md` has them.
"""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from pyarrow import parquet
from torch import nn

import gradwatch

ROOT = Path(__file__).parents[2]
WORLD = 3


def make(folder: Path) -> None:
    """Six runs under `FOLDER/runs`, the checkpoints under `FOLDER/checkpoints`."""
    (folder / "runs").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    with _torch_as_it_was():
        same_everywhere()
        dying = _start_killed(folder / "runs/killed")
        checkpoints(folder / "checkpoints")
        assert dying.wait(60) == -signal.SIGKILL  # before the others begin: runs are listed by age
        for name, maker in RUNS.items():
            maker(folder / "runs" / name)


def same_everywhere() -> None:
    """In double precision: processors add in different orders, and the digits that are kept of a
    training in single precision would differ."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Other tests of this process find torch's generator and default as they left them."""
    before, precision = torch.get_rng_state(), torch.get_default_dtype()
    yield
    torch.set_rng_state(before)
    torch.set_default_dtype(precision)


# -- runs ------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + change


class CarelessNorm(nn.Module):
    """Standardises each example, and forgets the ε: equal features become NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / centred.pow(2).mean(dim=-1, keepdim=True).sqrt()


def residual(width: int = 16, blocks: int = 2) -> nn.Sequential:
    """A stem, residual blocks, a head for four classes."""
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(12, width))
    for number in range(blocks):
        model.add_module(f"block{number}", Block(width))
    model.add_module("head", nn.Linear(width, 4))
    return model


def batch(generator: torch.Generator, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Four noisy clusters of twelve features."""
    centres = torch.arange(48.0).reshape(4, 12).sin()
    labels = torch.randint(4, (size,), generator=generator)
    return centres[labels] + 0.5 * torch.randn(size, 12, generator=generator), labels


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Path,
    steps: int,
    *,
    seed: int = 0,
    spoil: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None,
    ending: Callable[[gradwatch.Watcher], None] = gradwatch.Watcher.close,
) -> None:
    """A plain loop, everything recorded on every step; `spoil` may change a batch in place."""
    generator = torch.Generator().manual_seed(seed)
    watcher = gradwatch.watch(model, optimizer, run=run, every=1)
    assert isinstance(watcher, gradwatch.Watcher)
    for step in range(steps):
        inputs, labels = batch(generator)
        if spoil is not None:
            spoil(step, inputs, labels)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        watcher.log(loss=loss, shown=step % 7)
        optimizer.step()
    assert watcher.recording
    ending(watcher)


def healthy(run: Path) -> None:
    """A residual network that learns."""
    torch.manual_seed(1)
    model = residual()
    train(model, torch.optim.AdamW(model.parameters(), 3e-3), run, 150, seed=1)


def sick(run: Path) -> None:
    """One layer the optimizer never got, and a NaN from a norm without ε at step 60."""
    torch.manual_seed(2)
    model = nn.Sequential()
    model.add_module("norm", CarelessNorm())
    for part, layer in residual().named_children():
        model.add_module(part, layer)
    forgotten = set(model.block1.up.parameters())  # type: ignore[union-attr]
    given = [tensor for tensor in model.parameters() if tensor not in forgotten]

    def spoil(step: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        if step == 60:
            inputs[7] = 0.25

    train(model, torch.optim.AdamW(given, 3e-3), run, 90, seed=2, spoil=spoil)


def killed(run: Path) -> None:
    """A deep net of sigmoids whose gradients vanish; the process dies by SIGKILL at step 80."""
    torch.manual_seed(3)
    layers = [nn.Linear(12, 16), nn.Sigmoid()]
    for _ in range(5):
        layers += [nn.Linear(16, 16), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Linear(16, 4))

    def die(watcher: gradwatch.Watcher) -> None:
        assert watcher.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer, run, 80, seed=3, ending=die)


def damaged(run: Path) -> None:
    """A healthy run: two columns no longer match their checksums, the optimizer's rows are gone."""
    torch.manual_seed(4)
    model = residual(blocks=1)
    train(model, torch.optim.AdamW(model.parameters(), 3e-3), run, 60, seed=4)
    for column in ("grad_norm", "weight_kurtosis"):
        (sealed,) = run.glob(f"*/rows/{column.partition('_')[0]}/*.parquet")
        damage(sealed, column)
    (lost,) = run.glob("*/rows/optim/*.parquet")
    lost.unlink()


def ranks(run: Path) -> None:
    """Three ranks that train alike until rank 1 sees other data from step 30 on, unaveraged."""
    for rank in range(WORLD):
        torch.manual_seed(5)
        model = residual(blocks=1)

        def spoil(step: int, inputs: torch.Tensor, labels: torch.Tensor, rank: int = rank) -> None:
            if rank == 1 and step >= 30:
                inputs *= 3.0

        with _launched(rank):
            train(model, torch.optim.SGD(model.parameters(), 0.05), run, 60, seed=5, spoil=spoil)


def long(run: Path) -> None:
    """Two thousand steps of a small network whose labels turn to noise at step 1400."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    noise = torch.Generator().manual_seed(66)

    def spoil(step: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        if step >= 1400:
            labels.copy_(torch.randint(4, labels.shape, generator=noise))

    train(model, torch.optim.Adam(model.parameters(), 1e-2), run, 2000, seed=6, spoil=spoil)


RUNS: dict[str, Callable[[Path], None]] = {
    "healthy": healthy,
    "sick": sick,
    "damaged": damaged,
    "ranks": ranks,
    "long": long,
}
"""Made in this process; `killed` needs one of its own."""


def _start_killed(run: Path) -> "subprocess.Popen[bytes]":
    paths = [str(Path(gradwatch.__file__).parents[1]), str(ROOT)]
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name if __spec__ else __name__, str(run), "killed"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


@contextmanager
def _launched(rank: int) -> Iterator[None]:
    """As a launcher starts a process: with its rank in the environment."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD))
    try:
        yield
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]


def damage(sealed: Path, column: str) -> None:
    """Flip a byte in the middle of a column."""
    group = parquet.read_metadata(sealed).row_group(0)
    (place,) = (
        c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == column
    )
    data = bytearray(sealed.read_bytes())
    data[place.data_page_offset + place.total_compressed_size // 2] ^= 0xFF
    sealed.write_bytes(data)


# -- checkpoints -----------------------------------------------------------------------------------


class Runs:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch owned",)


def weights(seed: int) -> dict[str, np.ndarray]:
    """What a small trained language model might hold."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.05) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    made = {"embed.weight": normal(60, 24)}
    for number in range(2):
        made[f"blocks.{number}.attn.weight"] = normal(48, 24)
        made[f"blocks.{number}.attn.bias"] = normal(48, scale=0.01)
        made[f"blocks.{number}.norm.weight"] = 1 + normal(24)
        made[f"blocks.{number}.mlp.weight"] = normal(24, 24)
    return {**made, "head.weight": normal(60, 24)}


def moved(before: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The same after some training: one tensor stood still, one is gone, one is new."""
    rng = np.random.default_rng(seed)
    after = {
        name: (value + 0.005 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in before.items()
    }
    after["blocks.0.mlp.weight"] = before["blocks.0.mlp.weight"]
    after["head.bias"] = np.zeros(60, np.float32)
    del after["blocks.1.attn.bias"]
    return after


def spoiled(before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Dead units, a constant tensor, a NaN, equal rows, a norm without gains, a loud channel."""
    after = {name: value.copy() for name, value in before.items()}
    after["blocks.0.attn.weight"][::2] = 0
    after["blocks.0.attn.bias"][::2] = 0
    after["blocks.0.mlp.weight"][:] = 0.02
    after["blocks.1.attn.weight"][3, 4] = np.nan
    after["blocks.1.mlp.weight"][5:15] = after["blocks.1.mlp.weight"][4]
    after["blocks.1.norm.weight"][:12] = 0
    after["head.weight"][:, 2] *= 400
    return after


def checkpoints(folder: Path) -> None:
    """Six kinds of checkpoint, healthy and sick, two to be refused, and an adapter."""
    from safetensors.numpy import save_file

    start = weights(10)
    save_file(start, folder / "healthy.safetensors")
    np.savez(folder / "after.npz", **moved(start, 11))  # type: ignore[arg-type]
    torch.save(_tensors(spoiled(start)), folder / "sick.pt")
    whole = {"model": _tensors(weights(12)), "epoch": 3, "half": torch.full((4, 6), 70000.0).half()}
    torch.save(whole, folder / "old.pth", _use_new_zipfile_serialization=False)
    _sharded(folder / "sharded", moved(start, 13))
    _distributed(folder / "dcp", _tensors(weights(14)))
    torch.save({"weight": torch.ones(3), "state": Runs()}, folder / "hostile.bin")
    raw = (folder / "healthy.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(raw[: len(raw) // 2])
    _adapter(folder / "adapter")


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}


def _sharded(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Two files and the index that says what is where."""
    from safetensors.numpy import save_file

    folder.mkdir()
    names = sorted(arrays)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    places = {name: files[at >= len(names) // 2] for at, name in enumerate(names)}
    for file in files:
        save_file({n: arrays[n] for n in names if places[n] == file}, folder / file)
    index = {"metadata": {"total_size": sum(v.nbytes for v in arrays.values())}}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({**index, "weight_map": places}), "utf-8"
    )


def _distributed(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """What `torch.distributed.checkpoint` writes, by one process."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(tensors, checkpoint_id=str(folder), no_dist=True)


def _adapter(folder: Path) -> None:
    """A LoRA adapter of `healthy.safetensors` whose second half never trained."""
    from safetensors.numpy import save_file

    folder.mkdir()
    rng = np.random.default_rng(15)
    tensors = {}
    for number in range(2):
        stem = f"base_model.model.blocks.{number}.mlp"
        up = 0.05 * rng.standard_normal((24, 2)) * (number == 0)
        tensors[f"{stem}.lora_A.weight"] = rng.standard_normal((2, 24)).astype(np.float32)
        tensors[f"{stem}.lora_B.weight"] = up.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 2}), "utf-8")


if __name__ == "__main__":
    same_everywhere()
    if sys.argv[2:] == ["killed"]:
        killed(Path(sys.argv[1]))
    else:
        make(Path(sys.argv[1]))
