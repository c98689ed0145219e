"""Trainings on a device that cannot be read: `python -m tests.record.device.imitated_training`."""

import importlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.record.device import imitated_device
from tests.record.device.comparing import differences, moved
from tests.record.sinks import MemorySink, watch_into
from torch import Tensor, nn

from gradwatch.record.signals import CompiledActivations, make_signals
from gradwatch.run import EventKind


class Net(nn.Module):
    """Layers of one size and of others, gates of every kind, and a division that can fail."""

    def __init__(self, sick_from: int | None, depth: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 300), nn.LayerNorm(300)
        self.middle = nn.ModuleList([nn.Linear(300, 300) for _ in range(depth)])
        self.last = nn.Linear(300, 4)
        self.odd = nn.Softplus()
        self.sick_from, self.calls = sick_from, 0

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)))
        for layer in self.middle:
            h = torch.tanh(3 * layer(h))
        if self.sick_from is not None and self.calls >= self.sick_from:
            h = h * float("inf")
        self.calls += 1
        out: Tensor = self.last(self.odd(h))
        return out


@dataclass
class Remains:
    sink: MemorySink
    weights: list[Tensor]
    launches: list[int] = field(default_factory=list)
    """Operations of each step, the user's and ours."""


def train(
    device: torch.device,
    *,
    watched: bool = True,
    sick_from: int | None = None,
    every: int | None = 1,
    clip: float | None = None,
    steps: int = 4,
    depth: int = 2,
    first: int = 0,
    by_hand: bool = False,
    taps: bool = False,
    clear: bool = True,
    to_none: bool = True,
) -> Remains:
    """Train a few steps; what the watcher recorded, the weights, the operations of each step."""
    model = Net(sick_from, depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    optimizers = [] if by_hand else [optimizer]
    sink = MemorySink()
    found = Remains(sink, [])
    names = [name for name, _ in model.named_parameters()]
    tools = make_signals(model, names, {"activations"})
    if taps:  # as for a compiled model whose activations were asked for
        tools = [CompiledActivations(model)]
    watcher = None
    if watched:
        watcher = watch_into(
            sink, model, *optimizers, every=every, budget=1.0, signals=tools, step=first
        )
    for step in range(steps):
        before = imitated_device.launched.total()
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 6, generator=generator).to(device)
        if clear:
            optimizer.zero_grad(set_to_none=to_none)
        loss = F.cross_entropy(model(x), (torch.arange(8) % 4).to(device))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if by_hand:
            update_by_hand(model)
        else:
            optimizer.step()
        if watcher is not None:
            if by_hand:
                watcher.step()
            watcher.log(loss=loss)
            assert watcher.guard.error is None, watcher.guard.error
        found.launches.append(imitated_device.launched.total() - before)
    if watcher is not None:
        watcher.close()
        assert watcher.guard.error is None, watcher.guard.error
    found.weights = [getattr(p, "raw", p).detach().clone() for p in model.parameters()]
    return found


def update_by_hand(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(1e-3 * parameter.grad)


def same_weights(one: Remains, other: Remains) -> bool:
    """To the bit: a NaN is equal to itself."""
    pairs = zip(one.weights, other.weights, strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


def compared() -> dict[str, Any]:
    """Trainings near and far: what differs, and whether the weights are those without us."""
    found: dict[str, Any] = {}
    for name, options in CASES.items():
        near, far = train(CPU, **options), train(imitated_device.DEVICE, **options)
        alone = train(imitated_device.DEVICE, watched=False, **options)
        found[name] = {
            "rows": len(far.sink.rows),
            "differences": differences(near.sink, far.sink),
            "moved": moved(near.sink, far.sink),
            "same weights": same_weights(far, alone),
            "stale": [far.sink.logged[step].get("stale") for step in sorted(far.sink.logged)],
            "events": [event.text for event in far.sink.events],
        }
    return found


def counted() -> dict[str, list[int]]:
    """Operations we add to each step of a training, without those for the logged loss.

    The first step of a recording records everything; 25 to 27 are no step of the slower cadences.
    """
    return {
        "every second": _ours(every=2),
        "by default": _ours(every=None, first=24),
        "by default, 6 layers more": _ours(every=None, first=24, depth=8),
    }


def _ours(*, every: int | None, first: int = 0, depth: int = 2) -> list[int]:
    alone = train(imitated_device.DEVICE, watched=False, depth=depth)
    ours = train(imitated_device.DEVICE, every=every, first=first, depth=depth)
    return [a - b - LOGGED for a, b in zip(ours.launches, alone.launches, strict=True)]


def captured() -> dict[str, Any]:
    """A training whose third optimizer step is captured: our launches in it, and its rows."""
    inside: list[int] = []
    model = Net(None, 1).to(imitated_device.DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    sink = MemorySink()
    watcher = watch_into(sink, model, optimizer, every=1, budget=1.0)
    for step in range(4):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x.to(imitated_device.DEVICE)).sum().backward()
        before = imitated_device.launched.total()
        imitated_device.Module.capturing = step == 2
        optimizer.step()
        imitated_device.Module.capturing = False
        inside.append(imitated_device.launched.total() - before)
    watcher.close()
    assert watcher.guard.error is None, watcher.guard.error
    # The same number of operations as without us, which the first steps show.
    alone = Net(None, 1).to(imitated_device.DEVICE)
    own = torch.optim.AdamW(alone.parameters(), 1e-3)
    for _ in range(3):
        alone(torch.randn(8, 6).to(imitated_device.DEVICE)).sum().backward()
        before = imitated_device.launched.total()
        own.step()
    users = imitated_device.launched.total() - before
    states = {(str(f), s): str(state.name) for (f, s, _), (_, state) in sink.rows.items()}
    of_weights = {f"{f} {s}": state for (f, s), state in states.items() if f in FAMILIES}
    return {"ours": [count - users for count in inside], "states": of_weights}


def on_two_devices() -> list[str]:
    """What differs where one parameter of an optimizer was left on the CPU."""
    sinks = []
    for place in (CPU, imitated_device.DEVICE):
        torch.manual_seed(0)
        tensors = {"a": torch.randn(40, 30), "b": torch.randn(7), "c": torch.randn(300, 300)}
        model = nn.ParameterDict({n: nn.Parameter(t) for n, t in tensors.items()})
        model["c"] = nn.Parameter(model["c"].detach().to(place))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
        sinks.append(MemorySink())
        watcher = watch_into(sinks[-1], model, optimizer, every=1, budget=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            for parameter in model.values():
                (parameter**3).sum().backward()
            optimizer.step()
        watcher.close()
        assert watcher.guard.error is None, watcher.guard.error
    assert moved(*sinks) == 0
    assert len(sinks[1].rows) > 30
    return differences(*sinks)


def sabotaged() -> dict[str, str]:
    """What happens where something of ours would wait for the device, planted at every place."""
    found = {}
    for turn, place in enumerate(PLACES):
        module, _, name = place.rpartition(".")
        what = [*WAITS][turn % len(WAITS)]
        with pytest.MonkeyPatch.context() as patch:
            first = getattr(importlib.import_module(module), name)
            patch.setattr(place, partial(_spoiled, first, WAITS[what]))
            found[f"{what} in {place}"] = _failure()
    return found


def _spoiled(
    first: Callable[..., Any], wait: Callable[[Tensor], Any], *args: Any, **kw: Any
) -> Any:
    for one in (*args, *kw.values()):
        if isinstance(one, imitated_device.DeviceTensor):
            wait(one.detach())
            break
    return first(*args, **kw)


def _failure() -> str:
    try:
        sink = train(imitated_device.DEVICE, steps=1).sink
    except AssertionError as error:
        return str(error)
    return " ".join(event.text for event in sink.events if event.kind is EventKind.SWITCHED_OFF)


CPU = torch.device("cpu")
LOGGED = 1
FAMILIES = ("weight", "grad", "update", "optim")
CASES: dict[str, dict[str, Any]] = {
    "healthy": {},
    "sick": {"sick_from": 2},
    "clipped": {"clip": 1e-2},
    "by hand": {"by_hand": True},
    "taps": {"taps": True, "steps": 3},
    "cleared to zeros": {"to_none": False, "steps": 3},
    "never cleared": {"clear": False, "steps": 3},
}
PLACES = (
    "gradwatch.record.signals.probe.spread",
    "gradwatch.record.signals.inputs.spread",
    "gradwatch.record.signals.activations.look_at_output",
    "gradwatch.record.signals.activation_functions.spread",
    "gradwatch.record.device.torch_engine.chunk_sums",
    "gradwatch.record.device.torch_engine.count_bins",
    "gradwatch.record.device.torch_engine.chunk_hashes",
    "gradwatch.record.device.torch_engine.chunk_sketches",
    "gradwatch.record.device.torch_steps.ratio",
    "gradwatch.record.device.torch_steps.change",
)
WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda tensor: tensor.sum().item(),
    "cpu": lambda tensor: tensor.cpu(),
    "nonzero": lambda tensor: tensor.nonzero(),
    "mask": lambda tensor: tensor[tensor > 0],
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable()
    imitated_device.install()
    results: dict[str, Any] = {
        "compared": compared(),
        "counted": counted(),
        "sabotaged": sabotaged(),
    }
    results |= {"captured": captured(), "two devices": on_two_devices()}
    print(json.dumps(results))
