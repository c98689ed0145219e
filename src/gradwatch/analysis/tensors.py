"""Measured tensors: of arrays by name, of a list of arrays, or the last sample in a `Run`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.kernel import MOMENTS, measure_arrays
from gradwatch.run import Run
from gradwatch.stats import Stat

CHUNK = 1 << 15
"""Elements looked at together: they stay in the processor's cache."""
ELEMENTS = "needs the elements; a run keeps only their statistics"
_COPIED = ("mean", "std", "skewness", "kurtosis", "norm", "abs_mean", "abs_max", "min", "max")


@dataclass(frozen=True)
class MeasuredTensor:
    """One weight: what it is called, its record and, unless it comes from a run, its elements."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    record: np.void
    values: NDArray[Any] | None

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.record["count"])

    @property
    def nonfinite(self) -> int:
        """Number of NaN and infinite elements."""
        return sum(int(self.record[name]) for name in ("nan", "pos_inf", "neg_inf"))

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nonfinite


Given = Mapping[str, Any] | Sequence[Any]


def named(tensors: Given) -> dict[str, NDArray[Any]]:
    """A list is named by position."""
    if isinstance(tensors, Mapping):
        return {str(name): np.asarray(array) for name, array in tensors.items()}
    if isinstance(tensors, Sequence) and not isinstance(tensors, str | bytes):
        return {str(i): np.asarray(array) for i, array in enumerate(tensors)}
    raise GradwatchError(
        f"Expected arrays by name, a list of arrays or a Run, got a {type(tensors).__name__}.",
        Exit.USAGE,
    )


def from_arrays(tensors: Given) -> list[MeasuredTensor]:
    """Arrays as they are handed in, measured in one pass."""
    arrays = named(tensors)
    flat = {name: _flat(name, array) for name, array in arrays.items()}
    records = measure_arrays(list(arrays.values())) if arrays else np.empty(0, MOMENTS)
    return [
        MeasuredTensor(name, array.shape, str(array.dtype), record, flat[name])
        for (name, array), record in zip(arrays.items(), records, strict=True)
    ]


def from_run(run: Run) -> list[MeasuredTensor]:
    """The last measured weight of every parameter, in forward order."""
    rows = last_rows(run, Stat.WEIGHT_MEAN)
    if not rows:
        raise GradwatchError(
            "This run has no recorded weights. Record them (they are by default), or hand in the "
            "arrays themselves."
        )
    orders = {column: run.parameters[column].order for column in rows}
    tensors = []
    for column in sorted(rows, key=lambda c: (orders[c] is None, orders[c] or 0)):
        subject, record = run.parameters[column], _record(run, rows[column], column)
        tensors.append(MeasuredTensor(subject.name, subject.shape, subject.dtype, record, None))
    return tensors


def last_rows(run: Run, stat: Stat) -> dict[int, int]:
    """Column of a parameter → row of its last measured value; those never measured have none."""
    measured = run.measured(stat)
    return {
        column: int(np.flatnonzero(measured[:, column])[-1])
        for column in range(len(run.names))
        if measured[:, column].any()
    }


def _record(run: Run, row: int, column: int) -> np.void:
    def value(name: str) -> float:
        return float(run.series[Stat(f"weight_{name}")][row, column])

    records = np.zeros(1, MOMENTS)
    for name in _COPIED:
        records[name] = value(name)
    for name in ("count", "nan", "zero_rows"):
        records[name] = np.nan_to_num(value(name))
    records["pos_inf"] = np.nan_to_num(value("inf"))  # the run does not keep the signs apart
    records["zeros"] = round(np.nan_to_num(value("zero_fraction")) * float(records["count"][0]))
    record: np.void = records[0]
    return record


def _flat(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array)
        array = array.view(array.real.dtype)
    if array.dtype.kind not in "fiub":
        raise GradwatchError(
            f"Expected numbers in {name!r}, got an array of {array.dtype}.", Exit.USAGE
        )
    return array.reshape(-1)


def floating(part: NDArray[Any]) -> NDArray[Any]:
    """In 32 or 64 bits, whichever holds the elements exactly; integers in 64."""
    if part.dtype in (np.float32, np.float64):
        return part
    return part.astype(np.float32 if part.dtype == np.float16 else np.float64)


def first_nonfinite(values: NDArray[Any]) -> int:
    """Flat index; the caller knows that there is one."""
    for begin in range(0, len(values), CHUNK):
        bad = ~np.isfinite(floating(values[begin : begin + CHUNK]))
        if bad.any():
            return begin + int(np.argmax(bad))
    raise ValueError("all elements are finite")
