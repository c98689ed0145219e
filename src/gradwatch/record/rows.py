"""The kernel's records as rows of the catalogue."""

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE, Family, entry, family_stats, row_dtype

_SCALED = ("norm", "mean", "std", "abs_mean", "abs_max", "min", "max")
_COPIED = ["count", "nan", "zero_rows", "skewness", "kurtosis", *_SCALED]
_COLUMNS = {
    family: [f"{family}_{name}" for name in _COPIED] for family in (Family.GRAD, Family.WEIGHT)
}


def empty_rows(family: Family, count: int) -> NDArray[np.void]:
    """Rows without a value: NaN in every float, 0 in every integer."""
    return np.repeat(_EMPTY[family], count)


def moment_rows(
    family: Family, records: NDArray[np.void], states: NDArray[np.uint8], factor: float = 1.0
) -> NDArray[np.void]:
    """Rows of gradients or weights; `factor` multiplies what has the tensor's unit."""
    rows = empty_rows(family, len(records))
    rows[_COLUMNS[family]] = records[_COPIED]
    if factor != 1.0:
        for name in _SCALED:
            rows[f"{family}_{name}"] *= factor
    rows[f"{family}_inf"] = records["pos_inf"] + records["neg_inf"]
    with np.errstate(invalid="ignore"):
        rows[f"{family}_zero_fraction"] = records["zeros"] / records["count"]
    return blank(family, rows, states)


def blank(family: Family, rows: NDArray[np.void], states: NDArray[np.uint8]) -> NDArray[np.void]:
    """Take the values out of rows whose state says there is none."""
    without = ~HAS_VALUE[states]
    if without.any():
        rows[without] = _EMPTY[family]
    return rows


def _empty_row(family: Family) -> NDArray[np.void]:
    row = np.zeros((), row_dtype(family))
    for item in family_stats(family):
        if np.dtype(entry(item.stat).dtype).kind == "f":
            row[str(item.stat)] = np.nan
    return row


_EMPTY = {family: _empty_row(family) for family in Family}
