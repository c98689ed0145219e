"""Batches as the forward part calls it, around plain calls of a model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from gradwatch.record.batches import Batches, fed_modules
from gradwatch.record.recorder import Found
from gradwatch.record.schedule import StepPlan
from gradwatch.run import Event
from gradwatch.stats import Family

EVERYTHING = frozenset(Family)
ONLY_PROBE = frozenset({Family.PROBE})


class Kept:
    """Stands for the recorder: keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.info: dict[str, Any] = {}

    def event(self, event: Event) -> None:
        self.events.append(event)

    def note(self, info: Mapping[str, Any]) -> None:
        self.info |= info


class Steps:
    """One model whose calls are looked at."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = Kept()
        self.batches = Batches(model, self.kept)  # type: ignore[arg-type]
        for module in fed_modules(model):
            module.register_forward_hook(self.batches.look, with_kwargs=True)

    @contextmanager
    def step(self, step: int = 0, due: frozenset[Family] = EVERYTHING) -> Iterator[Found]:
        """A step; its numbers are in what this gives, once it is over."""
        assert self.batches.wants(StepPlan(step, due, full=False))
        found = Found(step)
        yield found
        self.batches.collect(found)


def scalars_of(
    model: nn.Module, *args: object, due: frozenset[Family] = EVERYTHING, **kwargs: object
) -> dict[str, float]:
    """The numbers of one call of the model."""
    steps = Steps(model)
    with steps.step(due=due) as found:
        model(*args, **kwargs)
    return found.scalars
