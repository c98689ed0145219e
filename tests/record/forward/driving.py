"""A tiny driver: calls the forward part as the watcher does, around a plain training step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.modules.module as torch_module
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.forward import Forward
from gradwatch.record.guard import OverheadTimer
from gradwatch.record.options import ALL, Record
from gradwatch.record.recorder import Found, Recorder
from gradwatch.record.schedule import StepPlan
from gradwatch.run import Event, Subject
from gradwatch.stats import Family

EVERYTHING = frozenset(Family)
ONLY_PROBE = frozenset({Family.PROBE})
Rows = dict[str, dict[str, Any]]


class Kept:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.timer = OverheadTimer()
        self.subjects: list[Subject] = []
        self.events: list[Event] = []
        self.info: dict[str, Any] = {}

    def declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]:
        first = len(self.subjects)
        self.subjects += subjects
        return np.arange(first, len(self.subjects), dtype=np.uint32)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def note(self, info: Mapping[str, Any]) -> None:
        self.info.update(info)


class Driven:
    """The forward part of one model, and what it gave."""

    def __init__(
        self,
        model: nn.Module,
        record: frozenset[Record] = ALL,
        watched: Collection[str] = (),
    ) -> None:
        self.kept = Kept()
        self.model = model
        self.forward = Forward(model, watched, record, cast("Recorder", self.kept))
        self.step = 0

    def arm(self, due: frozenset[Family] = EVERYTHING, *, full: bool = True) -> None:
        self.forward.arm(StepPlan(self.step, due, full))

    def collect(self, *, skipped: bool = False) -> Found:
        found = Found(self.step)
        (self.forward.skipped if skipped else self.forward.collect)(found)
        for transfer, finish in found.late:
            late = finish(transfer.parts())
            found.rows += late.rows
            found.scalars |= late.scalars
        self.step += not skipped
        return found

    def rows(self, found: Found, family: Family) -> Rows:
        """Layer → statistic → value, with `state`, and the subject beside it."""
        named: Rows = {}
        for part in found.rows:
            if part.family is family:
                for place, row, state in zip(part.ids, part.rows, part.states, strict=True):
                    subject = self.kept.subjects[place]
                    values = {name: row[name].item() for name in row.dtype.names}
                    named[subject.name] = {**values, "state": int(state), "subject": subject}
        return named

    def train(
        self,
        loss_of: Callable[[nn.Module], Tensor],
        family: Family,
        *,
        steps: int = 1,
        due: frozenset[Family] = EVERYTHING,
        before: Callable[[int], None] | None = None,
    ) -> list[Rows]:
        """Train `steps` steps with SGD; the rows of each step."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        seen = []
        for _ in range(steps):
            self.arm(due)
            if before is not None:
                before(self.step)
            optimizer.zero_grad()
            loss_of(self.model).backward()
            self.forward.backward()
            seen.append(self.rows(self.collect(), family))
            optimizer.step()
        return seen


def hook_count(model: nn.Module | None = None) -> int:
    """Hooks of the process on all modules, and those on the modules of this model."""
    ours = [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
    for module in model.modules() if model is not None else ():
        ours += [module._forward_hooks, module._forward_pre_hooks]
    return sum(map(len, ours))


class Divide(nn.Module):
    """Divides by the number of positive entries: NaN for a row without any."""

    def forward(self, x: Tensor) -> Tensor:
        kept = x.relu()
        out: Tensor = kept / (kept > 0).sum(-1, keepdim=True)
        return out
