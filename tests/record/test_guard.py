"""Whatever fails inside, the training goes on unchanged and one line says so."""

import logging
from typing import Any

import pytest
import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into

from gradwatch.record import Watcher

STEPS = 6


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(fail: Any = None, at: int = 2) -> tuple[list[torch.Tensor], Watcher | None]:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    watcher = watch_into(MemorySink(), model, optimizer) if fail else None
    for step in range(STEPS):
        if fail and step == at:
            fail(watcher)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        if watcher is not None:
            watcher.log(loss=loss)
    return [p.detach().clone() for p in model.parameters()], watcher


def _broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("planted")


SEAMS = {
    "weights": "gradwatch.record.cpu.CpuMeter.weights",
    "gradients": "gradwatch.record.cpu.CpuMeter.gradients",
    "copy": "gradwatch.kernel.copy",
    "step": "gradwatch.kernel.step",
    "divisors": "gradwatch.record.cpu._second_moments",
    "gather": "gradwatch.record.cpu.gather",
    "sample": "gradwatch.record.sampler.GradientSampler._keep",
    "outside": "gradwatch.record.cpu.CpuMeter.keep_weights",
    "take": "gradwatch.record.recorder.Recorder.take",
    "layers": "gradwatch.record.forward.Forward.collect",
    "parameters": "gradwatch.record.parameters.TrackedParameters.refresh",
    "pace": "gradwatch.record.schedule.Pace.after",
    "clock": "gradwatch.record.schedule.StepClock.enter",
    "cadence": "gradwatch.record.schedule.Schedule.plan",
}


@pytest.mark.parametrize("seam", SEAMS)
def test_a_failure_at_any_seam_leaves_the_training_alone(
    seam: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bare, _ = train()
    with caplog.at_level(logging.DEBUG, "gradwatch"):
        watched, watcher = train(lambda _: monkeypatch.setattr(SEAMS[seam], _broken))
    assert watcher is not None
    assert str(watcher.guard.error) == "planted"
    assert not watcher.recording
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "planted" in lines[0].getMessage()
    assert watcher.controller.recorder.sink.closed  # type: ignore[attr-defined]


def test_a_failing_log_line_does_no_harm_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.record.guard.log.warning", _broken)
    bare, _ = train()
    watched, watcher = train(lambda _: monkeypatch.setattr(SEAMS["weights"], _broken))
    assert watcher is not None
    assert not watcher.recording
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))


def test_a_keyboard_interrupt_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(lambda _: monkeypatch.setattr(SEAMS["weights"], interrupt))


def test_a_failure_while_starting_leaves_a_watcher_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tests.record.sinks.MemorySink.declare", _broken)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher = watch_into(MemorySink(), model, optimizer)
    loss_of(model, 0).backward()
    optimizer.step()
    watcher.log(loss=1.0)
    watcher.close()
    assert not watcher.recording
    assert "planted" in caplog.text
