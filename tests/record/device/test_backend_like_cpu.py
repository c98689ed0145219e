"""One training recorded near and far: every number of every family is the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.record.device.comparing import differences, moved
from tests.record.device.pretending import pretend_on_device
from tests.record.sinks import MemorySink, watch_into
from torch import Tensor, nn

STEPS = 5


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    data: Callable[[torch.Generator], Tensor]
    optimizer: Callable[..., Any] = torch.optim.AdamW
    lr: float = 1e-3
    clip: float | None = None
    cut: float | None = None
    sick_from: int | None = None
    autocast: bool = False


def vectors(generator: torch.Generator) -> Tensor:
    return torch.randn(8, 6, generator=generator)


def mlp() -> nn.Module:
    hidden = [nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40)]
    return nn.Sequential(*hidden, nn.Tanh(), nn.Linear(40, 4))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 300), nn.Linear(300, 4))


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 16, 4)).to(memory_format=torch.channels_last)


def images(generator: torch.Generator) -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=generator)


class Words(nn.Module):
    """Most rows of the embedding never get a gradient; one parameter gets none at all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.ones(3, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed(ids))


def ids(generator: torch.Generator) -> Tensor:
    return torch.randint(0, 20, (6,), generator=generator)


CASES = {
    "healthy": Case(mlp, vectors),
    "more than 65,536 elements": Case(wide, vectors, torch.optim.SGD, lr=0.1),
    "clipped by norm": Case(mlp, vectors, clip=1e-3),
    "cut off at a value": Case(mlp, vectors, cut=1e-3),
    "convolutional": Case(convolutional, images),
    "words": Case(Words, ids),
    "bfloat16": Case(lambda: mlp().to(torch.bfloat16), lambda g: vectors(g).to(torch.bfloat16)),
    "double": Case(lambda: mlp().double(), lambda g: vectors(g).double()),
    "amsgrad": Case(mlp, vectors, lambda p, lr: torch.optim.Adam(p, lr, amsgrad=True, eps=1e-3)),
    "not finite": Case(mlp, vectors, sick_from=2),
    "exploding": Case(mlp, lambda g: 1e12 * vectors(g), torch.optim.SGD, lr=1e-9),
    "autocast": Case(mlp, vectors, autocast=True),
}


def recorded(case: Case) -> MemorySink:
    torch.manual_seed(0)
    model = case.make()
    optimizer = case.optimizer(model.parameters(), lr=case.lr)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            loss = model(case.data(torch.Generator().manual_seed(step))).float().square().mean()
            if case.sick_from is not None and step >= case.sick_from:
                loss = loss * float("inf")
            loss.backward()
            if case.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            if case.cut is not None:
                nn.utils.clip_grad_value_(model.parameters(), case.cut)
            optimizer.step()
    watcher.close()
    assert watcher.guard.error is None
    return sink


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    torch.set_num_threads(1)
    near = recorded(CASES[request.param])
    pretend_on_device(monkeypatch)
    return request.param, near, recorded(CASES[request.param])


def test_the_same_numbers(pair: tuple[str, MemorySink, MemorySink]) -> None:
    _, near, far = pair
    assert len(near.rows) > 50
    assert differences(near, far) == []


def test_the_same_histograms(pair: tuple[str, MemorySink, MemorySink]) -> None:
    name, near, far = pair
    assert len(near.bins) > 10
    # Undoing a clipping rounds: an element may come to lie on the other side of a power of two.
    assert moved(near, far) <= (2 if name == "clipped by norm" else 0)
