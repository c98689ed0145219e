"""Where weights come from: arrays by name, a list of arrays, or the last sample in a `Run`."""

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
_COPIED = ("mean", "std", "skewness", "kurtosis", "norm", "abs_mean", "abs_max", "min", "max")


@dataclass(frozen=True)
class Tensor:
    """One weight: what it is called, its record and, unless it comes from a run, its elements."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    record: np.void
    values: NDArray[Any] | None

    @property
    def nonfinite(self) -> int:
        return sum(int(self.record[name]) for name in ("nan", "pos_inf", "neg_inf"))

    @property
    def finite(self) -> int:
        return int(self.record["count"]) - self.nonfinite


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


def from_arrays(tensors: Given) -> list[Tensor]:
    arrays = named(tensors)
    flat = {name: _flat(name, array) for name, array in arrays.items()}
    records = measure_arrays(list(arrays.values())) if arrays else np.empty(0, MOMENTS)
    return [
        Tensor(name, array.shape, str(array.dtype), record, flat[name])
        for (name, array), record in zip(arrays.items(), records, strict=True)
    ]


def from_run(run: Run) -> list[Tensor]:
    """The last measured weight of every parameter, in forward order."""
    measured = run.measured(Stat.WEIGHT_MEAN)
    seen = [column for column in range(len(run.names)) if measured[:, column].any()]
    if not seen:
        raise GradwatchError(
            "This run has no recorded weights. Record them (they are by default), or hand in the "
            "arrays themselves."
        )
    seen.sort(key=lambda column: _place(run.parameters[column].order))
    tensors = []
    for column in seen:
        row = int(np.flatnonzero(measured[:, column])[-1])
        subject = run.parameters[column]
        record = _record(run, row, column)
        tensors.append(Tensor(subject.name, subject.shape, subject.dtype, record, None))
    return tensors


def _place(order: int | None) -> float:
    return np.inf if order is None else order


def _record(run: Run, row: int, column: int) -> np.void:
    def value(name: str) -> float:
        return float(run.series[Stat(f"weight_{name}")][row, column])

    records = np.zeros(1, MOMENTS)
    for name in _COPIED:
        records[name] = value(name)
    for name, stored in (("count", "count"), ("nan", "nan"), ("zero_rows", "zero_rows")):
        records[name] = np.nan_to_num(value(stored))
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
