"""A failure at any seam ends in one log line; the training goes on and ends the same to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.record.harm.comparing import Remains, global_hooks, left_behind, remains, start
from tests.record.harm.loops import classes, mlp, plain, sgd, vectors
from torch import Tensor, nn

torch.set_num_threads(1)
STEPS = 30


class Planted(Exception):
    """What our seams are made to raise."""


def training(
    folder: Path | None, prepare: Callable[[], None] | None = None, at: int = 5
) -> Remains:
    torch.manual_seed(3)
    model = mlp(nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
    loop = plain(model, sgd(model, momentum=0.9), vectors(8, 6), classes)
    before = global_hooks()
    watcher = start(loop, folder, every=1) if folder is not None else None
    losses: list[Tensor] = []
    try:
        for index in range(STEPS):
            if index == at and prepare is not None:
                prepare()
            loss = loop.step(index)
            losses.append(loss.detach().clone())
            if watcher is not None:
                watcher.log(loss=loss)
    finally:
        if watcher is not None:
            watcher.close()
    assert left_behind(loop, before) == []
    return remains(loop, losses)


def raising(error: BaseException) -> Callable[..., Any]:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise error

    return broken


SEAMS = {
    "gradients": "gradwatch.record.cpu.CpuMeter.gradients",
    "weights": "gradwatch.record.cpu.CpuMeter.weights",
    "kernel: step": "gradwatch.kernel.step",
    "kernel: activations": "gradwatch.record.activations.moments",
    "hook: probe": "gradwatch.kernel.nonfinite",
    "hook: batches": "gradwatch.record.batches.Batches.look",
    "hook: activation functions": "gradwatch.record.functions.read",
    "hook: autograd": "gradwatch.record.graph.AutogradWalker.sources",
    "hook: backward": "gradwatch.record.sampler.GradientSampler._keep",
    "step: before": "gradwatch.record.steps.StepController._measure_before",
    "step: after": "gradwatch.record.steps.StepController._measure_after",
    "rows: probe": "gradwatch.record.forward.Forward._put_probe",
    "rescan": "gradwatch.record.parameters.TrackedParameters.scan",
    "ring": "gradwatch.record.recorder.Recorder.take",
    "log": "gradwatch.record.logs.Logs.drain",
    "loss kind": "gradwatch.record.notes.describe_loss",
}


@pytest.mark.parametrize("seam", SEAMS)
def test_a_planted_failure(
    seam: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = training(None)

    def plant() -> None:
        monkeypatch.setattr(SEAMS[seam], raising(Planted("planted here")))

    at = 0 if seam == "loss kind" else 5  # it is asked for until it is known
    watched = training(tmp_path / "run", plant, at)
    assert alone.differences(watched) == []
    ours = [record for record in caplog.records if record.name.startswith("gradwatch")]
    assert len(ours) == 1
    assert "planted here" in ours[0].getMessage()


@pytest.mark.parametrize("seam", ["step: before", "hook: probe", "log"])
def test_an_interrupt_passes_through(
    seam: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plant() -> None:
        monkeypatch.setattr(SEAMS[seam], raising(KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "run", plant)


@pytest.mark.parametrize("call", ["os.write", "os.fsync", "os.open"])
def test_a_disk_that_fails(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are the writer's thread's business: the loop does not even notice."""
    alone = training(None)

    def plant() -> None:
        monkeypatch.setattr(call, raising(OSError(28, "No space left on device")))

    watched = training(tmp_path / "run", plant)
    monkeypatch.undo()
    assert alone.differences(watched) == []
