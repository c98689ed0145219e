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


class SealedHistogram(NamedTuple):
    """Where a sealed histogram is."""

    columns: Callable[[], Sequence[Any] | None]
    """Reads `COLUMNS` of its file; None where they are damaged."""
    row: int

    def read(self) -> Histogram | None:
        """None where it turns out damaged."""
        columns = self.columns()
        if columns is None:
            return None
        exponents, negative, positive, *counts = columns
        below, above = (
            lists.values[lists.offsets[self.row] : lists.offsets[self.row + 1]]
            for lists in (negative, positive)
        )
        numbers = (int(count[self.row]) for count in counts)
        return Histogram(int(exponents[self.row]), below, above, *numbers)


class StoredHistograms(Mapping[int, Histogram]):
    """Histograms by step, read when they are looked at; damaged ones are then left out."""

    def __init__(self, found: Mapping[int, Histogram | SealedHistogram]) -> None:
        self._found = found

    def __getitem__(self, step: int) -> Histogram:
        found = self._found[step]
        histogram = found.read() if isinstance(found, SealedHistogram) else found
        if histogram is None:
            raise KeyError(step)
        return histogram

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def items(self) -> ItemsView[int, Histogram]:
        """Of all that are sound, which are read for it."""
        sound = {step: self.get(step) for step in self}
        return {step: found for step, found in sound.items() if found is not None}.items()
