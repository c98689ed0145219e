"""A watched model can do what an unwatched one can: be traced, scripted, exported, copied."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.record.forward.driving import EVERYTHING, Driven, hook_count
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.func import functional_call, vmap

from gradwatch.run import EventKind
from gradwatch.stats import Family

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
DATA = torch.linspace(-1, 1, 24).reshape(4, 6)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def add_graph(model: nn.Module) -> Tensor:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(Path.cwd() / "board")) as writer:
        writer.add_graph(model, DATA)
    given: Tensor = model(DATA)
    return given


def batched(model: nn.Module) -> Tensor:
    stacked = {name: torch.stack([value, value]) for name, value in weights(model).items()}

    def called(given: dict[str, Tensor]) -> Any:
        return functional_call(model, given, (DATA,))

    both: Tensor = vmap(called)(stacked)
    return both[0]


DONE: dict[str, Callable[[nn.Module], Any]] = {
    "trace": lambda model: torch.jit.trace(model, DATA)(DATA),
    "script": lambda model: torch.jit.script(model)(DATA),
    "add_graph": add_graph,
    "export": lambda model: torch.export.export(model, (DATA,)).module()(DATA),
    "symbolic trace": lambda model: torch.fx.symbolic_trace(model)(DATA),
    "vmap": batched,
    "functional_call": lambda model: functional_call(
        model, dict(model.named_parameters()), (DATA,)
    ),
    "pickle": lambda model: pickle.loads(pickle.dumps(model))(DATA),
    "deepcopy": lambda model: copy.deepcopy(model)(DATA),
}


def loss(model: nn.Module) -> Tensor:
    squared: Tensor = model(DATA).pow(2).mean()
    return squared


@pytest.mark.parametrize("due", [EVERYTHING, frozenset({Family.PROBE}), frozenset()])
@pytest.mark.parametrize("how", DONE)
def test_a_watched_model_can_do_it_too(how: str, due: frozenset[Family]) -> None:
    expected = DONE[how](net())
    driven = Driven(net())
    (first,) = driven.train(loss, Family.ACT)
    driven.arm(due)
    assert torch.equal(DONE[how](driven.model), expected)
    with torch.no_grad():
        assert torch.equal(DONE[how](driven.model), expected)
    loss(driven.model).backward()
    driven.forward.backward()
    rows = driven.rows(driven.collect(), Family.ACT)
    assert rows.keys() == (first.keys() if Family.ACT in due else set())
    assert all(row["act_count"] == first[layer]["act_count"] for layer, row in rows.items())
    assert driven.kept.events == []
    driven.forward.detach()
    assert hook_count(driven.model) == 0
    assert [node.layer for node in driven.forward.graph.nodes] == ["0", "1", "2", "3"]  # type: ignore[union-attr]


def test_a_pickled_model_knows_nothing_of_us() -> None:
    driven = Driven(net())
    driven.arm()
    assert b"gradwatch" not in pickle.dumps(driven.model)
    driven.forward.detach()


@pytest.mark.parametrize("compiled_first", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_nothing_is_compiled_anew(compiled_first: bool, inside: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = net()
    fast: Any = torch.compile(model, backend="eager") if compiled_first else None
    driven = Driven(model if inside or not compiled_first else fast)
    driven.arm()
    fast = fast or torch.compile(model, backend="eager")
    with warnings.catch_warnings():
        if not compiled_first:  # torch says once that there are global hooks
            warnings.simplefilter("ignore", UserWarning)
        for step in range(6):
            fast(DATA).pow(2).mean().backward()
            driven.forward.backward()
            driven.collect()
            driven.arm(frozenset() if step % 3 else EVERYTHING)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert {event.kind for event in driven.kept.events} <= {EventKind.NOT_RECORDED}
    driven.forward.detach()
    torch._dynamo.reset()
