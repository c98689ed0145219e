"""The statistics that are more than moments, against naive float64 ones."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.record.loops import batch, loss_of, mlp
from tests.record.sinks import MemorySink, watch_into
from torch import nn
from torch.nn import functional as F

from gradwatch.run import EventKind
from gradwatch.stats import Family, State


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(model: nn.Module, optimizer: Any, steps: int = 3, **options: Any) -> MemorySink:
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    assert watcher.guard.error is None
    watcher.close()
    return sink


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"betas": (0.8, 0.95)}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.Adam, {"eps": 1e-2}),
        (torch.optim.NAdam, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
    ],
)
def test_the_second_moment_is_the_one_the_step_used(kind: Any, settings: dict[str, Any]) -> None:
    model = mlp()
    optimizer = kind(model.parameters(), lr=1e-2, **settings)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        beta, eps = optimizer.param_groups[0]["betas"][1], optimizer.param_groups[0]["eps"]
        for name, parameter in model.named_parameters():
            state = optimizer.state[parameter]
            v = state.get("max_exp_avg_sq", state["exp_avg_sq"]).double()
            root = (v / (1 - beta ** (step + 1))).sqrt()
            ratio = parameter.grad.double() / (root + eps)
            row, found = sink.rows[Family.OPTIM, step, name]
            assert found is State.MEASURED
            assert row["optim_ratio_rms"] == pytest.approx(
                float(ratio.square().mean().sqrt()), rel=1e-5
            )
            assert row["optim_eps_fraction"] == pytest.approx(
                float((root < eps).double().mean()), abs=1e-6
            )


def test_optimizers_without_a_second_moment_have_no_such_rows() -> None:
    model = mlp()
    sink = train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert sink.steps(Family.OPTIM) == []


def test_updates_too_small_for_the_type_are_counted_as_lost() -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    x, y = batch(0, torch.bfloat16)
    F.cross_entropy(model(x).float(), y).backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        lost = (parameter.grad != 0) & (parameter == before[name])
        expected = float(lost.sum()) / float((parameter.grad != 0).sum())
        row, _ = sink.rows[Family.UPDATE, 0, name]
        assert row["update_lost_fraction"] == pytest.approx(expected, abs=1e-6)
    assert sink.rows[Family.UPDATE, 0, "0.weight"][0]["update_lost_fraction"] > 0.5


def test_learning_rates_of_every_group_of_every_optimizer() -> None:
    model = mlp()
    one = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=0.25
    )
    two = torch.optim.Adam(model[4].parameters(), torch.tensor(0.125))
    sink = MemorySink()
    watch_into(sink, model, one, two)
    for step in range(2):
        loss_of(model, step).backward()
        one.step()
        two.step()
    found = {n: sink.rows[Family.GROUP, 1, f"group {n}"][0]["lr"] for n in range(3)}
    assert found == {0: 0.5, 1: 0.25, 2: 0.125}
    groups = {s.name: s.group for s in sink.subjects if s.name.endswith("weight")}
    assert groups == {"0.weight": 0, "2.weight": 1, "4.weight": 2}


def test_rows_that_get_no_gradient_are_counted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    seen: set[int] = set()
    for step in range(6):
        tokens = torch.tensor([step, step + 1, 7])
        seen |= set(tokens.tolist())
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), torch.tensor([0, 1, 2])).backward()
        optimizer.step()
        row, _ = sink.rows[Family.GRAD, step, "0.weight"]
        assert row["grad_zero_rows"] == 50 - len(set(tokens.tolist()))
        assert row["grad_untouched_rows"] == row["grad_dead_rows"] == 50 - len(seen)


def test_the_cosine_tells_repeated_from_reversed_gradients() -> None:
    model = nn.Linear(40, 30)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    sink = MemorySink()
    watch_into(sink, model, optimizer, record={"gradients"})
    direction = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    for factor in (1.0, 2.0, -0.5, -3.0):
        model.weight.grad = direction * factor
        optimizer.step()
    found = [sink.rows[Family.GRAD, step, "weight"][0]["grad_cosine"] for step in range(4)]
    assert np.isnan(found[0])
    assert found[1:] == pytest.approx([1.0, -1.0, 1.0], abs=1e-5)
    assert sink.rows[Family.GRAD, 0, "bias"][1] is State.NO_GRADIENT


@pytest.mark.parametrize("clip", [None, 0.02])
def test_histograms_are_exact_and_raw(clip: float | None) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    loss_of(model, 0).backward()
    raw = {name: p.grad.double().numpy().copy() for name, p in model.named_parameters()}
    weights = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    for family, truth in ((Family.GRAD, raw), (Family.WEIGHT, weights)):
        for name, values in truth.items():
            found = sink.bins[family, 0, name]
            assert found.count == values.size
            for sign, bins in ((1, found.positive), (-1, found.negative)):
                chosen = values[np.sign(values) == sign]
                exponents = np.frexp(np.abs(chosen))[1] - 1
                for offset, count in enumerate(bins):
                    assert count == (exponents == found.first_exponent + offset).sum()


def test_a_hash_changes_where_and_only_where_a_weight_does() -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    sink = train(model, torch.optim.SGD(model.parameters(), 0.1))
    frozen = [sink.rows[Family.WEIGHT, s, "0.weight"][0]["weight_hash"] for s in range(4)]
    moving = [sink.rows[Family.WEIGHT, s, "2.weight"][0]["weight_hash"] for s in range(4)]
    assert len(set(frozen)) == 1
    assert len(set(moving)) == 4


def test_equal_rows_show_as_no_spread() -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    nn.init.constant_(model[0].weight, 0.25)
    sink = train(model, torch.optim.SGD(model.parameters(), 0.0), steps=1)
    assert sink.rows[Family.WEIGHT, 0, "0.weight"][0]["weight_row_spread"] == 0.0
    assert sink.rows[Family.WEIGHT, 0, "2.weight"][0]["weight_row_spread"] > 0.1


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    gradient = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    gradient[0, 1] = float("nan")
    gradient[1] = torch.tensor([float("inf"), -float("inf"), 1.0, 2.0])
    model.weight.grad = gradient
    optimizer.step()
    row, state = sink.rows[Family.GRAD, 0, "weight"]
    finite = gradient[gradient.isfinite()].double()
    assert state is State.MEASURED
    assert (row["grad_nan"], row["grad_inf"], row["grad_count"]) == (1, 2, 12)
    assert row["grad_norm"] == pytest.approx(float(finite.norm()), rel=1e-6)


def test_a_sparse_gradient_too_large_to_be_dense_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwatch.record.tensors.DENSE_LIMIT", 10)
    model = nn.Embedding(50, 6, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([1, 1, 7])).square().sum().backward()
        optimizer.step()
    assert watcher.guard.error is None
    assert sink.rows[Family.GRAD, 2, "weight"][1] is State.UNSUPPORTED
    told = [event.subject for event in sink.events if event.kind is EventKind.NOT_RECORDED]
    assert told == ["weight"]


@pytest.mark.parametrize("clear", [True, False])
def test_sparse_gradients_that_are_left_over(clear: bool) -> None:
    model = nn.Embedding(50, 6, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    for _ in range(3):
        if clear:
            optimizer.zero_grad(set_to_none=False)
        model(torch.tensor([1, 1, 7])).square().sum().backward()
        optimizer.step()
    assert watcher.guard.error is None
    assert sink.logged[2]["stale"] == float(not clear)


def test_large_models_are_compared_at_fixed_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.record.cpu.free_memory", lambda: 1000.0)
    model = nn.Linear(200, 100)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = MemorySink()
    watch_into(sink, model, optimizer)
    model(torch.randn(8, 200, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    before = model.weight.detach().clone()
    optimizer.step()
    row, state = sink.rows[Family.UPDATE, 0, "weight"]
    assert state is State.SAMPLED
    change = float((model.weight.detach() - before).norm())
    assert row["update_norm"] == pytest.approx(change, rel=0.1)
    assert sink.rows[Family.UPDATE, 0, "bias"][1] is State.MEASURED
