"""Histograms on their way from a journal to a sealed file: many records as one table."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.store.format import HIST_HEAD, StoredRecord
from gradwatch.store.parquet import Lists

_HEAD_WORDS = HIST_HEAD.size // 8


def histogram_table(
    records: Sequence[StoredRecord], yield_gil: Callable[[], None]
) -> dict[str, Any]:
    """The columns of a sealed file from sound HIST records, by subject and then by step.

    Of a subject all histograms lie side by side then, as they are asked for.
    """
    raw = b"".join(record.payload for record in records if record.payload is not None)
    words = np.frombuffer(raw, "<u8")
    halves = memoryview(raw).cast("I")
    starts: list[int] = []
    counts: list[int] = []
    at = 0
    for number, record in enumerate(records):
        end = at + len(record.payload or b"") // 8
        before = len(starts)
        while at < end:
            starts.append(at)
            at += _HEAD_WORDS + 2 * halves[2 * at + 2]  # its third half word: how many bins
        counts.append(len(starts) - before)
        if number % 16 == 0:
            yield_gil()
    steps = np.repeat(np.array([record.head.step for record in records], np.int64), counts)
    return _sorted_columns(words, np.array(starts, np.int64), steps)


def _sorted_columns(
    words: NDArray[np.uint64], starts: NDArray[np.int64], steps: NDArray[np.int64]
) -> dict[str, Any]:
    front = words[starts[:, None] + np.arange(_HEAD_WORDS)]
    halves = front[:, :2].copy().view(np.uint32)
    order = np.lexsort((steps, halves[:, 0]))
    starts, front, halves = starts[order], front[order], halves[order]
    bins = halves[:, 2].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(bins)])
    # Word i of the joined lists is the i-th word behind the first one of its own list.
    behind = np.arange(offsets[-1]) - np.repeat(offsets[:-1], bins)
    negative = words[np.repeat(starts + _HEAD_WORDS, bins) + behind]
    positive = words[np.repeat(starts + _HEAD_WORDS + bins, bins) + behind]
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
