"""Signals of a model of blocks on the imitated device: `python -m ...device.imitated_signals`."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.record.device import imitated_device
from tests.record.device.imitated_device import Clock
from tests.record.signals.driving import Divide
from tests.record.sinks import MemorySink, watch_into
from torch import Tensor, nn

from gradwatch.record import Watcher
from gradwatch.record.signals import Activations, Probe, make_signals
from gradwatch.stats import Family, State

FIRST = 33
"""Records everything; the next shows which blocks are called, then come steps until 48."""


class Block(nn.Module):
    """Six layers, one of which divides by zero when it is sick."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), nn.Linear(width, width)
        self.ln_2, self.fc = nn.LayerNorm(width), nn.Linear(width, width)
        self.divide, self.proj = Divide(), nn.Linear(width, width)
        self.sick = False

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        h = self.fc(self.ln_2(x))
        out: Tensor = x + self.proj(self.divide(h - 1000 if self.sick else h.abs() + 1))
        return out


class Gpt(nn.Module):
    """Blocks between layers of their own, as GPT-2 has them."""

    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wte = nn.Linear(6, width)
        self.h = nn.ModuleList([Block(width) for _ in range(depth)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wte(x)
        for block in self.h:
            x = block(x)
        out: Tensor = self.head(self.ln_f(x))
        return out


@dataclass
class Remains:
    sink: MemorySink
    watcher: Watcher
    launches: list[int] = field(default_factory=list)
    """Operations of each step, the user's and ours."""


Sick = Callable[[int, int], bool]
"""Whether the second block is sick in this step and micro-batch."""


def train(
    *,
    signals: bool = True,
    batches: int = 1,
    depth: int = 3,
    steps: int = 6,
    every: int | None = None,
    sick: Sick = lambda step, batch: False,
    before: Callable[[int], None] = lambda step: None,
    kinds: tuple[type, ...] = (Probe, Activations),
    device: torch.device = imitated_device.DEVICE,
) -> Remains:
    """Train from step 33 on; the weights stay as they are, whatever the gradients."""
    model = Gpt(depth).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    sink = MemorySink()
    names = [name for name, _ in model.named_parameters()]
    tools = make_signals(model, names, {"activations"})
    tools = [tool for tool in tools if isinstance(tool, kinds) and signals]
    watcher = watch_into(sink, model, optimizer, every=every, budget=1.0, signals=tools, step=FIRST)
    found = Remains(sink, watcher)
    kept = [p.detach().clone() for p in model.parameters()]
    for step in range(FIRST, FIRST + steps):
        before(step)
        start = imitated_device.launched.total()
        optimizer.zero_grad()
        for batch in range(batches):
            setattr(model.h[-2], "sick", sick(step, batch))  # noqa: B010
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(device)
            model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
        assert watcher.guard.error is None, watcher.guard.error
        found.launches.append(imitated_device.launched.total() - start)
    watcher.close()
    assert watcher.guard.error is None, watcher.guard.error
    return found


def of_signals(**options: Any) -> list[int]:
    """Operations that the signals add to each step."""
    ours, without = train(**options), train(signals=False, **options)
    return [a - b for a, b in zip(ours.launches, without.launches, strict=True)]


def micro_batches() -> dict[str, Any]:
    return {
        "one": of_signals(batches=1, every=1),
        "four": of_signals(batches=4, every=1),
        "one, blocks": of_signals(batches=1),
        "four, blocks": of_signals(batches=4),
    }


def depths() -> dict[str, list[int]]:
    return {str(depth): of_signals(depth=depth, kinds=(Probe,)) for depth in (2, 6)}


def hits() -> dict[str, list[list[Any]]]:
    """Layers whose output was not finite, on which step, and whether their input was."""
    cases: dict[str, dict[str, Any]] = {
        "from 37 on": {"sick": lambda step, batch: step >= 37},
        "once": {"sick": lambda step, batch: step == 37},
        "third micro-batch": {"sick": lambda step, batch: step >= 37 and batch == 2, "batches": 4},
        "third micro-batch, on the CPU": {
            "sick": lambda step, batch: step >= 37 and batch == 2,
            "batches": 4,
            "device": torch.device("cpu"),
        },
    }
    return {name: _bad(train(steps=9, **options).sink) for name, options in cases.items()}


def _bad(sink: MemorySink) -> list[list[Any]]:
    return [
        [step, name, bool(row["probe_input_nonfinite"] == 0)]
        for (family, step, name), (row, _) in sorted(sink.rows.items())
        if family is Family.PROBE and row["probe_nonfinite"] and name.startswith("h.1")
    ]


def limited() -> dict[str, Any]:
    """With room for 40 launches, on steps on which everything is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwatch.record.device.launches.MOST_LAUNCHES", 40)
        probes = train(every=1, steps=3, kinds=(Probe,)).sink
        activations = train(every=1, steps=12, kinds=(Activations,)).sink
        return {
            "launches": of_signals(every=1, steps=3),
            "probed": _measured(probes, Family.PROBE),
            "not probed": _unmeasured(probes, Family.PROBE),
            "activations": _measured(activations, Family.ACT),
            "no activations": _unmeasured(activations, Family.ACT),
        }


def _measured(sink: MemorySink, family: Family) -> list[list[str]]:
    return _named(sink, family, lambda state: state.has_value)


def _unmeasured(sink: MemorySink, family: Family) -> list[list[str]]:
    return _named(sink, family, lambda state: state is State.NOT_SAMPLED)


def _named(sink: MemorySink, family: Family, wanted: Callable[[State], bool]) -> list[list[str]]:
    return [
        sorted(
            name
            for (kind, at, name), (_, state) in sink.rows.items()
            if kind is family and at == step and wanted(state)
        )
        for step in sink.steps(family)
    ]


def one_launch() -> dict[str, Any]:
    """With an engine that measures an output in one launch."""
    calls: list[tuple[int, ...]] = []

    def output(tensor: Tensor) -> Tensor:
        calls.append(tuple(tensor.shape))
        return torch.zeros(5, dtype=torch.float64, device=tensor.device)

    engine = SimpleNamespace(output=output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwatch.record.signals.tensors.trusted_engine", lambda *_: engine)
        sink = train(steps=1, kinds=(Activations,)).sink
    rows = [key for key in sink.rows if key[0] is Family.ACT]
    return {"calls": len(calls), "rows": len(rows), "whole": all(len(one) > 1 for one in calls)}


def timed(seconds_per_launch: float) -> dict[str, Any]:
    """On a device each of whose launches takes so long; of what it did only our part is ours."""
    Clock.seconds_per_launch = seconds_per_launch
    found = train(steps=38, depth=2)
    Clock.seconds_per_launch = 0.0
    return {
        "k": found.watcher.controller.pace.k,
        "overhead": found.watcher.overhead,
        "wall": found.watcher.guard.timer.wall,
        "launches": found.launches,
        "events": found.sink.kinds(),
        **found.sink.info,
    }


def captured() -> dict[str, Any]:
    """A CUDA graph is captured during the third and the fourth step."""
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:

        def capture(step: int) -> None:
            now = step in (FIRST + 2, FIRST + 3)
            patch.setattr("torch.cuda.is_initialized", lambda: now)
            patch.setattr("torch.cuda.is_current_stream_capturing", lambda: now)
            asked.append(imitated_device.Event.asked)

        found = train(every=1, kinds=(object,), before=capture)
    # The first step is always recorded.
    alone = train(steps=2, every=1 << 20, signals=False).launches[1]
    return {
        "ours": [launches - alone for launches in found.launches],
        "questions": [b - a for a, b in pairwise(asked)],
        "steps": found.sink.steps(Family.GRAD),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable()
    imitated_device.install()
    train(every=1, batches=2)  # some tensors are made once in a process
    results = {
        "micro-batches": micro_batches(),
        "depths": depths(),
        "hits": hits(),
        "limited": limited(),
        "one launch": one_launch(),
        "slow": timed(0.1),
        "quick": timed(0.0),
        "captured": captured(),
    }
    print(json.dumps(results))
