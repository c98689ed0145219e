"""What is done on an accelerator, done here on the CPU: the same numbers, only later."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from tests.record.comparing import compare_run
from tests.record.loops import LOOPS, loss_of, mlp
from tests.record.sinks import MemorySink, watch_into
from torch import Tensor, nn

from gradwatch.record.device.backend import restoring, shift_to_raw
from gradwatch.record.device.transfer import Transfer
from gradwatch.run import EventKind
from gradwatch.stats import Family, State

OTHERWISE = {"sparse_embedding": "sparse gradients are not read there"}


@pytest.mark.parametrize(
    "loop", [x for x in LOOPS if x.name not in OTHERWISE], ids=lambda x: x.name
)
def test_loops_on_a_device_are_recorded_as_they_happened(loop: Any, on_device: None) -> None:
    compare_run(loop, tolerance=max(loop.tolerance, 5e-6))


@pytest.mark.parametrize("whole", [True, False])
def test_updates_are_whole_or_sampled_and_say_so(
    on_device: None, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if not whole:
        monkeypatch.setattr("gradwatch.record.device.torch_steps.MOST_MEMORY", 1000)
    model = nn.Linear(200, 100)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    model(torch.randn(8, 200, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    before = model.weight.detach().clone()
    optimizer.step()
    assert (Family.UPDATE, 0, "weight") not in sink.rows
    watcher.close()
    row, state = sink.rows[Family.UPDATE, 0, "weight"]
    assert state is (State.MEASURED if whole else State.SAMPLED)
    change = float((model.weight.detach() - before).norm())
    assert row["update_norm"] == pytest.approx(change, rel=1e-6 if whole else 0.1)
    row, state = sink.rows[Family.OPTIM, 0, "weight"]
    assert state is State.MEASURED
    assert row["optim_ratio_rms"] == pytest.approx(1.0, rel=1e-3)


def test_nothing_of_the_trainings_lives_longer_while_numbers_are_under_way(on_device: None) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    watcher = watch_into(MemorySink(), model, optimizer, every=1)
    for step in range(2):
        loss_of(model, step).backward()
        optimizer.step()
        storages = [
            p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None
        ]
        gradients = [weakref.ref(p.grad) for p in model.parameters() if p.grad is not None]
        optimizer.zero_grad()
    gc.collect()
    alive = {t.untyped_storage().data_ptr() for t in gc.get_objects() if type(t) is Tensor}
    assert [gradient() for gradient in gradients] == [None] * len(storages)
    assert alive.isdisjoint(storages)
    watcher.close()


def test_hashes_follow_the_weights(on_device: None) -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    watcher.close()
    frozen = {int(sink.rows[Family.WEIGHT, s, "0.weight"][0]["weight_hash"]) for s in range(4)}
    moving = {int(sink.rows[Family.WEIGHT, s, "2.weight"][0]["weight_hash"]) for s in range(4)}
    assert (len(frozen), len(moving)) == (1, 4)


def test_an_overflow_is_told_when_it_is_known(on_device: None) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer, scaler=scaler)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step) * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    watcher.close()
    assert [e.step for e in sink.events if e.kind is EventKind.SKIPPED_STEP] == [1]
    assert [sink.logged[step]["skipped"] for step in range(4)] == [0.0, 1.0, 0.0, 0.0]


def test_a_transfer_keeps_the_order_of_its_parts() -> None:
    parts = [torch.arange(3.0), torch.tensor(7, dtype=torch.int64), torch.zeros(0), torch.ones(2)]
    found = Transfer(parts).parts()
    expected = [[0, 1, 2], [7], [], [1, 1]]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("gradwatch.record.device.torch_engine.count_bins", "histograms"),
        ("gradwatch.record.device.torch_rows.spread", "spreads of rows"),
        ("gradwatch.record.device.torch_engine.chunk_sketches", "sketches"),
    ],
)
def test_what_a_device_cannot_do_is_left_out_and_said_once(
    place: str,
    what: str,
    on_device: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no such operation here")

    monkeypatch.setattr("gradwatch.record.device.torch_plan.unsupported", set())
    monkeypatch.setattr(place, missing)
    sink, model = MemorySink(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watcher = watch_into(sink, model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    watcher.close()
    assert watcher.guard.error is None
    assert [record.getMessage() for record in caplog.records] == [
        f"gradwatch: {what} are not recorded on cpu: no such operation here"
    ]
    assert sink.steps(Family.GRAD) == [0, 1, 2, 3]
    for (family, _, name), (row, state) in sink.rows.items():
        assert state == State.MEASURED or family is Family.UPDATE, name
        if family is Family.GRAD:
            assert np.isfinite(row["grad_kurtosis"]), name
            assert np.isnan(row["grad_sketch"]).all() == (what == "sketches")


# -- raw again -------------------------------------------------------------------------------------


def test_what_makes_a_gradient_raw_again() -> None:
    was = torch.randn(64, generator=torch.Generator().manual_seed(0))
    other = torch.randn(64, generator=torch.Generator().manual_seed(1))

    def found(*now: Tensor) -> float:
        pairs = list(zip((was, other), now, strict=False))
        factor = restoring(pairs)
        assert factor is not None
        return float(factor)

    assert found(was, other) == 1.0
    assert found(was * 0.3, other * 0.3) == pytest.approx(1 / 0.3, rel=1e-6)
    assert found(was.clamp(-0.5, 0.5), other) == 1.0
    assert found(was * 0.3, other * 0.4) == 1.0
    was[3] = float("nan")
    assert found(was * 0.25, other * 0.25) == 4.0
    assert found(was, other) == 1.0
    assert restoring([]) is None


@pytest.mark.parametrize(
    ("multiplier", "applied", "shift"),
    [
        (1.0, 1.0, 0),
        (4.0, 1.0, 2),
        (1 / 65_536, 1.0, -16),
        (3.3, 3.3 * (1 + 1e-6), 0),
        (3.3, 3.3 * (1 - 1e-6), 0),
        (6.6, 3.3, 1),
        (3.3, 1.0, None),
        (float("nan"), 1.0, None),
        (1.0, 0.0, None),
    ],
)
def test_bins_are_moved_by_powers_of_two(
    multiplier: float, applied: float, shift: int | None
) -> None:
    assert shift_to_raw(multiplier, applied) == shift
