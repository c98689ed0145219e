"""Outputs of layers on accelerators: what is computed there, and the record it becomes here."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS
from gradwatch.record.far.arithmetic import cleaned, wide
from gradwatch.record.signals.calls import Call, FarRecord
from gradwatch.record.signals.far import spread
from gradwatch.record.signals.gates import Reading

MOST = 1 << 22
"""Elements of an output that are looked at: more would take memory that the training may need."""


def look(tensor: Tensor) -> FarRecord:
    """Sums over an output, on its device; no element of it is kept."""
    seen = spread(tensor, MOST)
    kind = wide(seen.device)
    clean = cleaned(seen)
    return FarRecord(
        tensor.numel(),
        seen.numel(),
        (
            (seen == 0).sum(dtype=kind),
            (clean != seen).sum(dtype=kind),
            torch.linalg.vector_norm(clean, float("inf"), dtype=kind),
            clean.sum(dtype=kind),
            torch.linalg.vector_norm(clean, 2, dtype=kind),
        ),
    )


def parts_of(calls: Sequence[Call]) -> list[Tensor]:
    """The numbers of these calls that are on accelerators."""
    found: list[Tensor] = []
    for call in calls:
        if isinstance(call.record, FarRecord):
            found += call.record.numbers
        found += [
            reading.value for _, reading in call.readings if isinstance(reading.value, Tensor)
        ]
    return found


def settled(calls: Sequence[Call], arrived: Sequence[NDArray[np.float64]]) -> list[Call]:
    """The same calls with the numbers that `parts_of` sent off."""
    numbers = iter([float(part[0]) for part in arrived])
    return [_settled(call, numbers) for call in calls]


def _settled(call: Call, numbers: Iterator[float]) -> Call:
    record = call.record
    if isinstance(record, FarRecord):
        record = _record(record, [next(numbers) for _ in record.numbers])
    readings = [(layer, _share(reading, numbers)) for layer, reading in call.readings]
    return replace(call, record=record, readings=readings, sampled=_sampled(call.record))


def _share(reading: Reading, numbers: Iterator[float]) -> Reading:
    if not isinstance(reading.value, Tensor):
        return reading
    return replace(reading, value=next(numbers) / reading.weight)


def _sampled(record: object) -> bool:
    return isinstance(record, FarRecord) and record.seen < record.size


def _record(far: FarRecord, numbers: Sequence[float]) -> NDArray[np.void]:
    """The kernel's record of it, as far as activations need one; counts raised to the whole."""
    zeros, bad, top, total, norm = numbers
    record = np.zeros(1, MOMENTS)
    whole = far.size / far.seen
    record["count"], record["zeros"], record["nan"] = far.size, round(zeros * whole), bad * whole
    finite = far.seen - bad
    for name in ("mean", "std", "skewness", "kurtosis", "norm", "abs_mean", "min", "max"):
        record[name] = np.nan
    record["abs_max"] = top if finite else np.nan
    if finite:
        mean = total / finite
        # In float64, whose sums of float32 numbers leave enough digits for the difference.
        record["mean"], record["std"] = mean, sqrt(max(norm * norm / finite - mean * mean, 0.0))
        record["norm"] = norm
    return record
