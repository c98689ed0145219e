"""What a `DeviceMeter` is given by the recorder, without any of it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradwatch.record.device import DeviceMeter, Engine, Seen, by_torch
from gradwatch.record.recorder import Call, Found
from gradwatch.record.sampler import LossScaling
from gradwatch.record.schedule import StepPlan
from gradwatch.record.tensors import readable_here
from gradwatch.record.transfer import Transfer, alike
from gradwatch.stats import Family, State

ALL = frozenset({Family.GRAD, Family.UPDATE, Family.OPTIM})


class Tracked:
    """An optimizer's parameters; `was` is what their samples were at the end of backward."""

    def __init__(self, tensors: Sequence[Tensor | None], optimizer: Any = None) -> None:
        self.given = list(tensors)
        self.optimizer = optimizer
        self.ids = np.arange(len(self.given), dtype=np.uint32) + 10
        self.parameters = [SimpleNamespace(name=f"p{i}") for i in range(len(self.given))]
        self.was: list[tuple[Tensor, Tensor]] = []
        self.sampler = SimpleNamespace(scaling=LossScaling(), pairs=lambda: self.was)

    def tensors(self) -> list[Tensor | None]:
        return self.given

    def gradients(self) -> list[Tensor | None]:
        return [None if p is None else p.grad for p in self.given]


class Recorder:
    histograms = True

    def __init__(self) -> None:
        self.unreadable: list[tuple[str, str]] = []

    def report_unreadable(self, step: int, what: str, name: str) -> None:
        self.unreadable.append((what, name))


def parameters(*gradients: Tensor | None) -> list[Tensor | None]:
    """Parameters that have these gradients."""
    made: list[Tensor | None] = []
    for gradient in gradients:
        parameter = torch.nn.Parameter(torch.zeros(3) if gradient is None else gradient.clone())
        parameter.grad = gradient
        made.append(parameter)
    return made


def meter(tracked: Tracked) -> tuple[DeviceMeter, Recorder]:
    recorder = Recorder()
    return DeviceMeter(tracked, recorder), recorder  # type: ignore[arg-type]


def call(tracked: Any, step: int = 0, due: frozenset[Family] = ALL, **options: Any) -> Call:
    full = options.pop("full", False)
    return Call(tracked, StepPlan(step, due, full), Found(step), **options)


def arrived(found: Found) -> Found:
    """What has come over, joined."""
    whole = Found(found.step, rows=list(found.rows), scalars=dict(found.scalars))
    for transfer, finish in found.late:
        transfer.wait()
        assert transfer.arrived
        late = finish(transfer.parts())
        whole.rows += late.rows
        whole.tables += late.tables
        whole.scalars |= late.scalars
        whole.skipped |= late.skipped
    return whole


def gradients(meter: DeviceMeter, tracked: Any, step: int = 0, **options: Any) -> Found:
    one = call(tracked, step, **options)
    meter.gradients(one)
    return arrived(one.found)


def family(found: Found, wanted: Family) -> tuple[Any, list[State]]:
    """The rows of a family and their states."""
    (rows,) = (each for each in found.rows if each.family is wanted)
    return rows.rows, [State(state) for state in rows.states]


class Measured(NamedTuple):
    """What an engine found of several tensors."""

    records: Any
    whole: Any
    samples: list[Any]
    touched: list[Any]


def measured(
    *tensors: Tensor, rows: bool = True, multiplier: float = 1.0, engine: Engine = by_torch
) -> Measured:
    """By an engine, given those of one type at once."""
    given = [x for tensor in tensors if (x := readable_here(tensor, anywhere=True)) is not None]
    seen: dict[int, Seen] = {}
    for some in alike(enumerate(given)):
        parts, finish = engine(list(some.values()), rows)
        arrived = iter(Transfer(parts).parts())
        seen |= dict(zip(some, finish(arrived, multiplier), strict=True))
        assert next(arrived, None) is None
    found = [seen[i] for i in range(len(given))]
    records = np.array([one.record for one in found])
    for record, one in zip(records, found, strict=True):
        record["zero_rows"] = 0 if one.touched is None else (~one.touched).sum()
    _, whole, samples, touched = zip(*found, strict=True)
    return Measured(records, np.array(whole), list(samples), list(touched))
