"""What a watched model still can do: be copied, pickled, forgotten; and what stays flat."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch
from tests.record.harm.comparing import global_hooks, hooks_of, left_behind, start, tiny
from tests.record.harm.loops import Loop, plain, sgd, vectors
from torch import nn

from gradwatch.record import Watcher, watch

torch.set_num_threads(1)


def watched(folder: Path, steps: int = 3) -> tuple[Loop, Watcher, frozenset[int]]:
    """A training in full swing with hooks of every kind; and the global hooks before it."""
    before = global_hooks()
    torch.manual_seed(0)
    model = nn.Sequential(tiny(), nn.BatchNorm1d(2))
    loop = plain(model, sgd(model, momentum=0.9), vectors(8, 4))
    watcher = start(loop, folder, every=1)
    for index in range(steps):
        watcher.log(loss=loop.step(index))
    assert hooks_of(model)  # else nothing below would show anything
    return loop, watcher, before


LOAD = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "gradwatch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import torch
torch.set_num_threads(1)
model, optimizer, data = torch.load(sys.argv[1], weights_only=False)
loss = model(data).pow(2).mean()
loss.backward()
optimizer.step()
torch.save([model, optimizer], sys.argv[1] + ".again")
print(repr(loss.item()))
"""


def test_pickled_whole_it_loads_where_we_are_not_installed(tmp_path: Path) -> None:
    loop, watcher, _ = watched(tmp_path / "run")
    data = torch.randn(8, 4)
    path = tmp_path / "model.pt"
    torch.save([loop.model, loop.optimizers[0], data], path)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loop.optimizers[0].zero_grad()
    assert float(done.stdout) == loop.model(data).pow(2).mean().item()
    watcher.close()


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_is_a_model_like_any_other_and_not_watched(how: str, tmp_path: Path) -> None:
    loop, watcher, before = watched(tmp_path / "run")
    other = (
        copy.deepcopy(loop.model) if how == "deepcopy" else pickle.loads(pickle.dumps(loop.model))
    )
    assert hooks_of(other) == []
    data = torch.randn(8, 4)
    assert torch.equal(other(data), copy.deepcopy(loop.model)(data))
    other(data).sum().backward()
    assert torch.equal(
        *(model[0][0].weight for model in (loop.model, other))  # type: ignore[index]
    )
    watcher.close()
    assert left_behind(loop, before) == []


def test_the_state_dict_is_the_bare_one_and_loads(tmp_path: Path) -> None:
    loop, watcher, _ = watched(tmp_path / "run")
    fresh = nn.Sequential(tiny(), nn.BatchNorm1d(2))
    assert list(loop.model.state_dict()) == list(fresh.state_dict())
    assert [*dict(loop.model.named_buffers())] == [*dict(fresh.named_buffers())]
    file = io.BytesIO()
    torch.save(loop.model.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    watcher.close()


@pytest.mark.parametrize("keep", [True, False], ids=["watcher kept", "watcher dropped"])
def test_a_model_that_is_let_go_is_gone(keep: bool, tmp_path: Path) -> None:
    loop, watcher, _ = watched(tmp_path / "run")
    model, weight = weakref.ref(loop.model), weakref.ref(loop.model[0][0].weight)  # type: ignore[index]
    optimizer = weakref.ref(loop.optimizers[0])
    kept = watcher if keep else None
    del loop, watcher
    gc.collect()
    assert model() is None
    assert weight() is None
    assert optimizer() is None
    if kept is not None:
        kept.close()


def test_closed_by_hand_everything_is_let_go(tmp_path: Path) -> None:
    loop, watcher, before = watched(tmp_path / "run")
    watcher.close()
    assert left_behind(loop, before) == []
    model = weakref.ref(loop.model)
    output = loop.model(torch.ones(8, 4)).detach()
    watcher.close()
    watcher.log(loss=1.0)
    loop.step(4)
    assert output.shape == (8, 2)
    del loop
    gc.collect()
    assert model() is None


def test_a_failing_loop_leaves_no_hook(tmp_path: Path) -> None:
    before = global_hooks()
    model = tiny()
    loop = plain(model, sgd(model), vectors(8, 4))

    def train() -> None:
        with watch(model, *loop.optimizers, run=tmp_path / "run"):
            loop.step(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert left_behind(loop, before) == []


@pytest.mark.parametrize(
    ("warm", "steps"), [(100, 200), pytest.param(2500, 2000, marks=pytest.mark.long)]
)
def test_memory_stays_flat(warm: int, steps: int, tmp_path: Path) -> None:
    """Bytes and objects of Python, with everything recorded on every step.

    The long form starts after the writer has sealed its first file and has all its buffers.
    """
    model = tiny()
    loop = plain(model, sgd(model), vectors(8, 4))
    watcher = start(loop, tmp_path / "run", every=1)

    def train(steps: int) -> None:
        for index in range(steps):
            watcher.log(loss=loop.step(index))
        assert watcher.flush()

    def used() -> tuple[int, int]:
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(gc.get_objects())

    tracemalloc.start()
    try:
        train(warm)
        first_bytes, first_objects = used()
        train(steps)
        deadline = time.monotonic() + 60
        while True:  # the writer's thread may be packing a file just now
            last_bytes, last_objects = used()
            flat = last_objects - first_objects < steps and last_bytes - first_bytes < 1000 * steps
            if flat or time.monotonic() > deadline:
                break
            time.sleep(0.5)
    finally:
        tracemalloc.stop()
        watcher.close()
    assert last_objects - first_objects < steps  # less than one object per step
    assert last_bytes - first_bytes < 1000 * steps
