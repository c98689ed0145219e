"""Histograms on accelerators: sign and exponent of every element, counted without a wait.

`torch.bincount` asks the device for its largest number, and `torch.histc` refuses to be
deterministic; adding ones to counters of whole numbers does neither.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import Bins, sparse_bins
from gradwatch.record.far.alike import Alike, pieces
from gradwatch.record.far.arithmetic import at_least_single
from gradwatch.run import Histogram

_CROWD = 1 << 16
"""So many elements would stand in line for the few counters they share: they get several sets."""
_SETS = 8
_SHARE = 4
"""Places of counters are numbers of 8 bytes: less is worked on at once than elsewhere."""


@dataclass(frozen=True)
class _Form:
    """How a type keeps its exponent."""

    integer: torch.dtype
    fraction: int
    exponent: int
    lift: int
    """Power of two by which subnormal numbers are raised, so that they have an exponent."""

    @property
    def keys(self) -> int:
        """Sign and exponent, each once as they are and once lifted."""
        return 4 << self.exponent

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1


_FORMS = {
    torch.float32: _Form(torch.int32, 23, 8, 32),
    torch.float64: _Form(torch.int64, 52, 11, 64),
}


def bins(group: Alike, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """[tensor, key]: counts of the elements (times `factor`); and how many are +Inf."""
    lines, device = len(group.indices), group.matrix.device
    form = _FORMS[torch.float64 if group.matrix.itemsize == 8 else torch.float32]
    sets = _SETS if group.matrix.shape[1] > _CROWD else 1
    counters = torch.zeros(lines * form.keys * sets, dtype=torch.int64, device=device)
    above = torch.zeros(lines, dtype=torch.int64, device=device)
    first = torch.arange(lines, device=device)[:, None] * (form.keys * sets)
    one = torch.ones((), dtype=torch.int64, device=device)
    for piece in pieces(group.matrix, _SHARE):
        x = at_least_single(piece)
        above += (x == float("inf")).sum(1)
        keys = _keys(x if factor is None else x * factor.to(x.dtype), form)
        places = keys.to(torch.int64).mul_(sets)
        if sets > 1:
            places += torch.arange(piece.shape[1], device=device) % sets
        places = places.add_(first).view(-1)
        counters.scatter_add_(0, places, one.expand(places.shape))
    return counters.view(lines, form.keys, sets).sum(2), above


def _keys(x: Tensor, form: _Form) -> Tensor:
    mask = ((1 << form.exponent) - 1) << form.fraction
    small = (x.contiguous().view(form.integer) & mask) == 0
    lifted = torch.where(small, x * 2.0**form.lift, x).view(form.integer)
    keys = (lifted >> form.fraction) & ((2 << form.exponent) - 1)
    return keys.add_(small, alpha=2 << form.exponent)


def bins_of(counts: NDArray[np.float64]) -> list[Bins]:
    """The kernel's bins, from what `bins` has counted."""
    keys = counts.shape[1]
    form = next(form for form in _FORMS.values() if form.keys == keys)
    exponents = np.arange(1, (1 << form.exponent) - 1) - form.bias
    lowest = int(exponents[0]) - form.lift
    dense = np.zeros((len(counts), 2, int(exponents[-1]) - lowest + 1), np.uint64)
    # [tensor, lifted, sign, biased exponent]; exponent 0 is zero, the last is not finite
    table = counts.astype(np.uint64).reshape(len(counts), 2, 2, -1)[..., 1:-1]
    for lifted in (0, 1):
        start = int(exponents[0]) - form.lift * lifted - lowest
        for sign in (0, 1):
            dense[:, 1 - sign, start : start + len(exponents)] += table[:, lifted, sign]
    return sparse_bins(dense, lowest)


def histogram_of(record: np.void, found: Bins, above: float, shift: int = 0) -> Histogram:
    """With zeros and non-finite elements from the record, and all exponents raised by `shift`."""
    infinite = int(record["pos_inf"] + record["neg_inf"])
    return Histogram(
        found.first_exponent + shift,
        found.negative,
        found.positive,
        int(record["zeros"]),
        int(record["nan"]),
        int(above),
        infinite - int(above),
    )
