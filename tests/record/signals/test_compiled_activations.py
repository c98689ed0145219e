"""Compiled models: no extra graph break from any hook, and activations for those who ask."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch._dynamo
from tests.record.signals.driving import collected, hook_count
from torch import Tensor, nn

from gradwatch.record.signals import Activations, CompiledActivations, make_signals
from gradwatch.stats import Family

torch.set_num_threads(1)
EVERYTHING = frozenset(Family)


class Counting:
    """A backend that counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.graphs += 1
        return module.forward


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("when", ["before", "after"])
def test_watching_breaks_no_graph(when: str) -> None:
    model, data = net(), torch.randn(6, 4)
    backend = Counting()
    target: Any = model if when == "before" else torch.compile(model, backend=backend)
    tools = make_signals(target, [], {"activations"} if when == "before" else set())
    for tool in tools:
        tool.attach()
        tool.arm(0, EVERYTHING)
    fast = target if when == "after" else torch.compile(model, backend=backend, fullgraph=True)
    for step in range(3):
        fast(data).sum().backward()
        for tool in tools:
            collected(tool, step)
            tool.arm(step + 1, EVERYTHING if step else frozenset())
    assert backend.graphs == 1
    for tool in tools:
        tool.detach()
    assert hook_count(model.modules()) == 0


def test_asked_for_they_are_recorded_in_one_graph() -> None:
    model, data = net(), 3 * torch.randn(6, 4)
    data[0, 0] = float("nan")
    backend = Counting()
    fast: Any = torch.compile(model, backend=backend, fullgraph=True)
    asked = make_signals(fast, [], {"activations"})[-1]
    assert isinstance(asked, CompiledActivations)
    asked.attach()
    asked.arm(0, EVERYTHING)
    fast(data).sum().backward()
    rows = collected(asked, 0)
    assert backend.graphs == 1
    output: Tensor = model[0](data).detach().double()
    finite = output[output.isfinite()]
    assert list(rows) == ["0", "1", "2", "3"]
    assert rows["0"]["act_count"] == output.numel()
    assert rows["0"]["act_nonfinite"] == 8
    assert rows["0"]["act_mean"] == pytest.approx(float(finite.mean()), rel=1e-5)
    assert rows["0"]["act_std"] == pytest.approx(float(finite.std(correction=0)), rel=1e-5)
    assert rows["0"]["act_abs_max"] == pytest.approx(float(finite.abs().max()), rel=1e-5)
    with torch.no_grad():
        fast(data)  # a validation
    asked.arm(1, EVERYTHING)
    assert collected(asked, 1) == {}
    copy.deepcopy(model)(data)
    pickle.loads(pickle.dumps(model))(data)
    asked.detach()
    assert hook_count(model.modules()) == 0


def test_without_compile_they_are_the_ordinary_ones() -> None:
    assert isinstance(make_signals(net(), [], {"activations"})[-1], Activations)
    assert not any(isinstance(tool, Activations) for tool in make_signals(net(), [], set()))


def test_the_parts_that_are_not_compiled_are_recorded() -> None:
    inner = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend="aot_eager")
    model = nn.Sequential(nn.Linear(4, 8), inner, nn.Linear(8, 1))
    signal = Activations(model)
    for step in range(2):
        signal.arm(step, EVERYTHING)
        model(torch.randn(6, 4)).sum().backward()
        assert list(collected(signal, step)) == ["0", "2"]
    (event,) = signal.events()
    assert event.data["why"] == "compiled"
