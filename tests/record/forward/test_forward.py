"""Models that are called in unusual ways, and what lies on a device."""

import math
import pickle

import pytest
import torch
from tests.record.forward.driving import EVERYTHING, ONLY_PROBE, Divide, Driven, hook_count
from torch import Tensor, nn

from gradwatch.graph import Graph
from gradwatch.record.device import top
from gradwatch.record.options import Record
from gradwatch.record.parameters import Networks
from gradwatch.stats import Family, State

torch.set_num_threads(1)
DATA = torch.linspace(-1, 1, 24).reshape(4, 6)


def mean_square(model: nn.Module) -> Tensor:
    out: Tensor = model(DATA).pow(2).mean()
    return out


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def edges(graph: Graph | None) -> set[tuple[str, str]]:
    assert graph is not None
    return set(graph.edges)


def test_several_networks() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 1))
    driven = Driven(Networks({"maker": maker, "judge": judge}))
    driven.arm()
    judge(maker(DATA)).mean().backward()
    driven.forward.backward()
    found = driven.collect()
    assert list(driven.rows(found, Family.ACT)) == ["maker", "judge.0", "judge.1"]
    assert found.scalars["training_mode"] == 1.0
    assert edges(driven.forward.graph) == {("maker", "judge.0"), ("judge.0", "judge.1")}
    driven.forward.detach()


def test_data_parallel_on_one_processor() -> None:
    driven = Driven(nn.DataParallel(net()))
    (rows,) = driven.train(mean_square, Family.ACT)
    assert list(rows) == ["0", "1", "2"]
    assert edges(driven.forward.graph) == {("0", "1"), ("1", "2")}
    driven.forward.detach()


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 1))
    driven = Driven(model)
    driven.arm()
    mean_square(model).backward()
    assert list(driven.rows(driven.collect(), Family.ACT)) == ["0", "1"]
    driven.forward.detach()


def test_layers_of_which_no_parameter_is_watched_are_left_out_of_the_rows() -> None:
    driven = Driven(net(), watched={"2"})
    driven.arm()
    mean_square(driven.model).backward()
    found = driven.collect()
    assert list(driven.rows(found, Family.ACT)) == ["1", "2"]
    assert list(driven.rows(found, Family.PROBE)) == ["2"]
    assert edges(driven.forward.graph) == {("0", "1"), ("1", "2")}
    driven.forward.detach()


@pytest.mark.parametrize("why", ["old torch", "compiled"])
def test_where_no_global_hook_may_be_each_layer_has_one(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = Driven(net()).train(mean_square, Family.ACT)
    if why == "compiled":
        torch.compile(nn.Linear(1, 1), backend="eager")
    else:
        monkeypatch.setattr("gradwatch.record.forward._WITH_KWARGS", None)
    driven = Driven(net())
    before = hook_count()
    (rows,) = driven.train(mean_square, Family.ACT)
    assert hook_count() == before
    assert hook_count(driven.model) == before + 4
    assert b"gradwatch" not in pickle.dumps(driven.model)
    assert rows.keys() == expected.keys()
    assert edges(driven.forward.graph) == {("0", "1"), ("1", "2")}
    driven.arm(frozenset(), full=False)
    assert hook_count(driven.model) == before + (4 if why == "compiled" else 0)
    driven.forward.detach()
    assert hook_count(driven.model) == before


def test_a_layer_alone_is_the_model() -> None:
    driven = Driven(nn.Linear(6, 2))
    (rows,) = driven.train(mean_square, Family.ACT)
    assert rows[""]["act_count"] == 8
    assert driven.forward.graph.order == {"": 0}  # type: ignore[union-attr]
    driven.forward.detach()


def test_layers_that_come_later_are_found() -> None:
    driven = Driven(net())
    model = driven.model
    driven.train(mean_square, Family.ACT)
    model.append(nn.Linear(2, 1))  # type: ignore[operator]
    rows = driven.train(mean_square, Family.ACT, steps=65)  # looked for after 64
    assert "3" in rows[-1]
    driven.forward.detach()


def test_a_model_let_go_leaves_no_hook() -> None:
    driven = Driven(net())
    driven.arm()
    assert hook_count() == 1
    del driven.model
    driven.arm()
    assert hook_count() == 0


def test_without_a_forward_that_is_told_once() -> None:
    driven = Driven(net())
    rows = driven.train(
        lambda model: sum((p.pow(2).sum() for p in model.parameters()), torch.zeros(())),
        Family.ACT,
        steps=5,
    )
    assert rows == [{}] * 5
    told = [event.data.get("why") for event in driven.kept.events]
    assert told.count("no forward of a module was seen") == 1
    assert driven.forward.graph is not None
    assert driven.forward.graph.assumed
    driven.forward.detach()


class TwoInputs(nn.Module):
    def __init__(self, *, zeroed: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(6, 4), nn.Linear(6, 4), nn.ReLU()
        self.zeroed = zeroed

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        h: Tensor = self.a(first)
        return h + self.b(self.relu(second)) if self.zeroed else h


def test_without_activations_a_model_is_fed_for_the_loss_guess_only() -> None:
    driven = Driven(net(), frozenset({Record.GRADIENTS}))
    due = frozenset({Family.GRAD})
    hooks = []
    for _ in range(6):
        driven.arm(due)
        hooks.append(hook_count())
        mean_square(driven.model).backward()
        driven.collect()
    assert hooks == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("zeroed", [True, False])
def test_inputs_that_go_nowhere(zeroed: bool) -> None:
    driven = Driven(TwoInputs(zeroed=zeroed))
    second = -torch.ones(4, 6)
    driven.train(lambda model: model(DATA, second=second).sum(), Family.ACT, steps=3)
    first, other = driven.kept.info["inputs"]
    assert (first["number"], first["name"], first["layers"]) == (1, "first", ["a"])
    assert (other["name"], other["layers"]) == ("second", [])
    assert other["blocked_by"] == (["relu"] if zeroed else [])
    assert other["sure"]
    driven.forward.detach()


# -- on a device -----------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the CPU is taken for that of a device: only operations of torch may read it."""
    for name in ("forward", "activations", "functions"):
        monkeypatch.setattr(f"gradwatch.record.{name}.readable", lambda tensor: False)
    monkeypatch.setattr("gradwatch.record.forward.KERNEL_DTYPES", {})
    monkeypatch.setattr("gradwatch.record.looking.on_accelerator", lambda tensor: True)


@pytest.mark.usefixtures("pretended")
def test_what_a_device_makes_that_is_not_finite_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Tensor] = []

    def counted(tensor: Tensor) -> Tensor:
        looks.append(tensor)
        return top(tensor)

    monkeypatch.setattr("gradwatch.record.forward.top", counted)
    model = nn.Sequential(nn.Linear(6, 8), Divide(), nn.Linear(8, 2))
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(-100.0)
    driven = Driven(model)
    driven.arm(ONLY_PROBE)
    for _ in range(2):
        mean_square(model).backward()
        driven.forward.backward()
    assert len(looks) == 6  # each layer once a step, its output and what it is given
    rows = driven.rows(driven.collect(), Family.PROBE)
    assert {name: row["probe_input_nonfinite"] for name, row in rows.items()} == {"1": 0, "2": 1}
    assert {row["state"] for row in rows.values()} == {State.SAMPLED}
    driven.forward.detach()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("large", [False, True])
def test_activations_of_a_device_come_late(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("gradwatch.record.activations.SAMPLE", 10)
    model = net()
    driven = Driven(model)
    driven.arm(EVERYTHING)
    mean_square(model).backward()
    found = driven.collect()
    rows = driven.rows(found, Family.ACT)
    assert len(found.late) >= 2
    with torch.no_grad():
        first: Tensor = model[0](DATA)
    assert rows["0"]["act_count"] == first.numel()
    assert rows["0"]["state"] == (State.SAMPLED if large else State.MEASURED)
    assert rows["0"]["act_mean"] == pytest.approx(float(first.mean()), abs=0.3 if large else 1e-6)
    assert rows["0"]["act_std"] == pytest.approx(
        float(first.std(correction=0)), rel=1 if large else 1e-5
    )
    assert math.isnan(rows["0"]["act_gate_zero_fraction"])  # functions are looked at on the CPU
    assert all(row["probe_training"] == 1 for row in driven.rows(found, Family.PROBE).values())
    driven.forward.detach()
