"""The rows of a step, on their way from where they are measured to the writer and the monitor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.run import HistogramTable, Subject
from gradwatch.stats import Family, State
from gradwatch.stats.rows import empty_rows

Reading = tuple[Family, Sequence[Subject], NDArray[np.void], NDArray[np.uint8]]
"""Rows of one family on one step that a signal made: their subjects, the rows, their states."""
Parts = list[NDArray[np.float64]]
"""The numbers of small tensors that have come over from a device, in the order they were sent."""


class FamilyRows(NamedTuple):
    """One family of all parameters of an optimizer; histograms where they are due."""

    family: Family
    rows: NDArray[np.void]
    states: NDArray[np.uint8]
    histograms: HistogramTable | None = None


@dataclass
class ReadyRows:
    """What `PendingRows` turned out to be."""

    readings: Sequence[Reading] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    families: Sequence[FamilyRows] = ()
    skipped: bool = False
    """The optimizer was told to leave the weights alone: the scaled gradients overflowed."""


class PendingRows(NamedTuple):
    """Small tensors whose numbers are still on a device, and what to make of them.

    Without tensors they are ready at once, as everything measured on the CPU is.
    """

    parts: Sequence[Tensor]
    finish: Callable[[Parts], ReadyRows]


def ready(
    families: Sequence[FamilyRows], scalars: Mapping[str, float] | None = None
) -> PendingRows:
    """Rows that wait for nothing."""
    rows = ReadyRows(families=families, scalars=scalars or {})
    return PendingRows((), lambda _: rows)


class StepRows(NamedTuple):
    """The rows of one family on one step, as they went to the writer."""

    family: Family
    ids: NDArray[np.uint32]
    rows: NDArray[np.void]
    states: NDArray[np.uint8]


class StepMonitor(Protocol):
    """Judges a step right after it, within the budget: the live checks."""

    @property
    def should_stop(self) -> bool:
        """Whether the training cannot recover."""

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """The subjects that ids stand for, whenever some are declared."""

    def noted(self, info: Mapping[str, Any]) -> None:
        """What was found out about the run: the kind of its loss, its number of classes."""

    def after_step(self, step: int, rows: Sequence[StepRows], scalars: Mapping[str, float]) -> None:
        """Judge the rows of a step that has just been recorded."""

    def close(self) -> None:
        """The training is over."""


def nothing(family: Family, count: int, state: State) -> FamilyRows:
    """Rows that only say why there is no value."""
    return FamilyRows(family, empty_rows(family, count), np.full(count, state, np.uint8))
