"""Sealed histograms: many records of a journal as one table, and single ones out of it again."""

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.subject import Histogram
from gradwatch.store.format import HIST_HEAD
from gradwatch.store.parquet import Lists

COLUMNS = (
    "first_exponent",
    "negative",
    "positive",
    "zeros",
    "nan",
    "positive_inf",
    "negative_inf",
)
WORD_BYTES = 8
HEAD_WORDS = HIST_HEAD.size // WORD_BYTES


def histogram_columns(
    words: NDArray[np.uint64], starts: NDArray[np.int64], steps: NDArray[np.int64]
) -> dict[str, Any]:
    """The columns of a sealed file from packed histograms that begin at these words.

    By subject and then by step: of a subject all lie side by side then, as they are asked for.
    """
    front = words[starts[:, None] + np.arange(HEAD_WORDS)]
    halves = front[:, :2].copy().view(np.uint32)
    order = np.lexsort((steps, halves[:, 0]))
    starts, front, halves = starts[order], front[order], halves[order]
    bins = halves[:, 2].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(bins)])
    # Word i of the joined lists is the i-th word behind the first one of its own list.
    behind = np.arange(offsets[-1]) - np.repeat(offsets[:-1], bins)
    negative = words[np.repeat(starts + HEAD_WORDS, bins) + behind]
    positive = words[np.repeat(starts + HEAD_WORDS + bins, bins) + behind]
    return {
        "step": steps[order],
        "subject": halves[:, 0],
        "first_exponent": halves[:, 1].view(np.int32),
        "negative": Lists(offsets, negative),
        "positive": Lists(offsets, positive),
        "zeros": front[:, 2],
        "nan": front[:, 3],
        "positive_inf": front[:, 4],
        "negative_inf": front[:, 5],
    }


# -- reading ---------------------------------------------------------------------------------------


class HistogramPart(NamedTuple):
    """Histograms of one subject in one place: their steps, and where and how each is read."""

    steps: NDArray[np.int64]
    rows: NDArray[np.intp]
    read: Callable[[int], Histogram | None]
    """None where it turns out damaged."""


def sealed_reader(
    columns: Callable[[], Sequence[Any] | None],
) -> Callable[[int], Histogram | None]:
    """Reads a row of a sealed file, of which `columns` gives `COLUMNS`."""

    def read(row: int) -> Histogram | None:
        found = columns()
        if found is None:
            return None
        exponents, negative, positive, *counts = found
        below, above = (
            lists.values[lists.offsets[row] : lists.offsets[row + 1]].astype(np.uint64)
            for lists in (negative, positive)
        )
        return Histogram(int(exponents[row]), below, above, *(int(count[row]) for count in counts))

    return read


class StoredHistograms(Mapping[int, Histogram]):
    """Histograms by step, read when they are looked at; damaged ones are then left out."""

    def __init__(self, parts: Sequence[HistogramPart]) -> None:
        self._parts = parts
        lengths = [len(part.steps) for part in parts]
        steps = np.concatenate([np.empty(0, np.int64), *(part.steps for part in parts)])
        order = np.argsort(steps, kind="stable")
        # Where a step comes twice, the later part counts.
        last = np.append(np.diff(steps[order]) != 0, True)[: len(steps)]
        self._steps = steps[order][last]
        self._part = np.repeat(np.arange(len(parts)), lengths)[order][last]
        rows = np.concatenate([np.empty(0, np.intp), *(part.rows for part in parts)])
        self._row = rows[order][last]

    def __getitem__(self, step: int) -> Histogram:
        at = int(np.searchsorted(self._steps, step))
        if at == len(self._steps) or self._steps[at] != step:
            raise KeyError(step)
        part: HistogramPart = self._parts[self._part[at]]
        histogram = part.read(int(self._row[at]))
        if histogram is None:
            raise KeyError(step)
        return histogram

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps.tolist())

    def __len__(self) -> int:
        return len(self._steps)

    def items(self) -> ItemsView[int, Histogram]:
        """Of all that are sound, which are read for it."""
        found = {step: self.get(step) for step in self}
        return {step: sound for step, sound in found.items() if sound is not None}.items()
