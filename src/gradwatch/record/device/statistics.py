"""Statistics of groups of tensors in torch operations, for memory we cannot read.

What a device computes are sums, in float64 (float32 on MPS, which has nothing wider), and nobody
waits for them; what they mean is worked out on the CPU when they have come over. So most things
here are pairs: `moments_of` runs there and `records_of` here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Bins, BinTable, sparse_bins
from gradwatch.kernel.plain import spread_rows
from gradwatch.record.guard import log
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import KERNEL_DTYPES, local, rows_lie_whole
from gradwatch.run import Histogram, HistogramTable
from gradwatch.stats import State

LIMIT = 1 << 22
"""Elements worked on at once: the memory this takes, some 100 MB, is the training's."""

_Made = TypeVar("_Made")
unsupported: set[tuple[str, str]] = set()
"""Type of device, and what it has no operation or no room for."""


@dataclass(frozen=True)
class ShapeGroup:
    """Tensors of one size and device, so that one operation serves them all.

    A launch costs a device as much as some ten thousand elements, and most tensors of a network are
    smaller than that. One tensor per line of the matrix; a large one is alone in it, a view.
    """

    indices: tuple[int, ...]
    matrix: Tensor
    rows: int
    """Of each tensor (dimension 0); 0 where it has only one dimension."""

    @property
    def pieces(self) -> list[Tensor]:
        """Stretches of all lines that are not too large to work on."""
        return pieces(self.matrix)


def pieces(matrix: Tensor, share: int = 1) -> list[Tensor]:
    """The columns of a matrix in stretches of at most LIMIT elements, or a share of that."""
    width = max(1, LIMIT // share // matrix.shape[0])
    if matrix.shape[1] <= width:
        return [matrix]
    return [matrix[:, start : start + width] for start in range(0, matrix.shape[1], width)]


def same_shape_groups(
    tensors: Sequence[Tensor | None], apart: NDArray[np.int64] | None = None
) -> list[ShapeGroup]:
    """All tensors that are there, by device, type and size; `apart` parts them further."""
    members: dict[tuple[int, int, object], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            rows = tensor.shape[0] if tensor.dim() > 1 else 0
            mark = 0 if apart is None else int(apart[index])
            key = tensor.numel(), rows, (tensor.device, tensor.dtype, mark)
            members.setdefault(key, []).append(index)
    groups = []
    for (size, rows, _), indices in members.items():
        at_once = max(1, LIMIT // size)
        for start in range(0, len(indices), at_once):
            some = indices[start : start + at_once]
            matrix = together([tensor for i in some if (tensor := tensors[i]) is not None])
            groups.append(ShapeGroup(tuple(some), matrix, rows))
    return groups


def together(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one size as the lines of a matrix; a single one is not copied."""
    lines = [flat(tensor) for tensor in tensors]
    return lines[0][None] if len(lines) == 1 else torch.stack(lines)


def flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory where its rows lie whole in it, as the kernel reads."""
    tensor = tensor.detach()
    if rows_lie_whole(tuple(tensor.shape), tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return tensor.reshape(-1)


def readable(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], NDArray[np.uint8]]:
    """The pieces torch can compute with, and why others are left out."""
    states = np.zeros(len(tensors), np.uint8)
    kept: list[Tensor | None] = []
    for index, tensor in enumerate(tensors):
        piece = None if tensor is None else local(tensor).detach()
        if piece is not None and piece.is_complex() and piece.layout is torch.strided:
            piece = torch.view_as_real(piece.resolve_conj())
        if piece is None:
            states[index] = State.NO_GRADIENT
        elif piece.is_meta or piece.layout is not torch.strided or piece.dtype not in KERNEL_DTYPES:
            states[index], piece = State.UNSUPPORTED, None
        kept.append(piece if piece is not None and piece.numel() else None)
    return kept, states


def supported(what: str, device: torch.device, make: Callable[[], _Made]) -> _Made | None:
    """What `make` gives; None where the device has no such operation, or no memory left for it.

    What a device cannot do is left out from then on, and said once; the rest is recorded.
    """
    key = device.type, what
    if key in unsupported:
        return None
    try:
        return make()
    except (RuntimeError, TypeError) as error:  # MPS has no float64 and says so by a TypeError
        unsupported.add(key)
        log.warning("gradwatch: %s are not recorded on %s: %s", what, device.type, error)
        return None


BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of the size of a float, to look at its bits."""
_SUMS = 12
"""How many numbers `moments` gives per line."""
_CROWD = 1 << 16
"""So many elements would stand in line for the few counters they share: they get several sets."""
_SETS = 8
_SHARE = 4
"""Places of counters are numbers of 8 bytes: less is worked on at once than elsewhere."""
_SHIFTS = (0, 16, 32, 48)
_INFINITY = float("inf")


def wide(device: torch.device) -> torch.dtype:
    """The type results are kept in."""
    return torch.float32 if device.type == "mps" else torch.float64


def cleaned(tensor: Tensor) -> Tensor:
    """In at least float32, with zeros where an element is not finite."""
    return at_least_single(tensor).nan_to_num(0.0, 0.0, 0.0)


def at_least_single(tensor: Tensor) -> Tensor:
    """In 32 bits or more: sums of 16-bit numbers would round to nothing."""
    return tensor if tensor.itemsize >= 4 else tensor.float()


def moments(matrix: Tensor) -> Tensor:
    """Sums over each line of a matrix with at least one column: [_SUMS, lines].

    Elements that are not finite are replaced by the mean of the others: then they are no extremes,
    and nothing at all once the mean is taken off. Powers are of the distance from the mean in units
    of the line's width, so that none leaves the range of the type.
    """
    kind = wide(matrix.device)
    x = at_least_single(matrix.detach())
    clean = cleaned(x)
    wrong = clean != x
    bad = wrong.sum(1, dtype=kind)
    total = clean.sum(1, dtype=kind)
    size = torch.linalg.vector_norm(clean, 1, dim=1, dtype=kind)
    del clean
    mean = (total / (x.shape[1] - bad)).to(x.dtype)
    filled = torch.where(wrong, mean[:, None], x)
    low, high = filled.aminmax(dim=1)
    unit = (high - low).clamp_min(torch.finfo(x.dtype).tiny)
    y = filled.sub(mean[:, None]).div_(unit[:, None])
    square = y * y
    numbers = [
        bad,
        (x != x).sum(1, dtype=kind),
        (x == 0).sum(1, dtype=kind),
        size,
        mean,
        low,
        high,
        unit,
        y.sum(1, dtype=kind),
        square.sum(1, dtype=kind),
        y.mul_(square).sum(1, dtype=kind),
        square.mul_(square).sum(1, dtype=kind),
    ]
    return torch.stack(numbers)


def moments_of(group: ShapeGroup) -> list[Tensor]:
    """The sums of every tensor of a group, piece by piece."""
    return [moments(piece) for piece in group.pieces]


def records_of(group_sizes: Sequence[int], sums: Sequence[NDArray[np.float64]]) -> NDArray[np.void]:
    """The kernel's records of the tensors of a group, from the sums of its pieces.

    `group_sizes` are the columns of the pieces. Infinities are all counted as positive, rows not.
    """
    parts = [
        _records(size, numbers.reshape(_SUMS, -1))
        for size, numbers in zip(group_sizes, sums, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    merged = [kernel.merge(np.array(list(p), kernel.MOMENTS)) for p in zip(*parts, strict=True)]
    return np.array(merged, kernel.MOMENTS)


def _records(size: int, numbers: NDArray[np.float64]) -> NDArray[np.void]:
    bad, nan, zeros, magnitude, near, low, high, unit, first, second, third, fourth = numbers
    records = np.zeros(numbers.shape[1], kernel.MOMENTS)
    records["count"], records["zeros"], records["nan"] = size, zeros, nan
    records["pos_inf"] = bad - nan
    with np.errstate(all="ignore"):  # lines without a finite element, and constant ones
        n = np.where(bad < size, size - bad, np.nan)
        # The mean that was taken off was rounded: what it missed is r.
        r, s2, s3, s4 = first / n, second / n, third / n, fourth / n
        variance = np.maximum(s2 - r * r, 0.0)
        variance[low == high] = 0.0
        mean = np.where(low == high, low, near + r * unit)
        std = np.sqrt(variance) * unit
        records["mean"], records["std"] = mean, std
        spread = np.where(variance > 0, np.sqrt(variance), np.nan)
        records["skewness"] = (s3 - 3 * r * s2 + 2 * r**3) / spread**3
        records["kurtosis"] = (s4 - 4 * r * s3 + 6 * r * r * s2 - 3 * r**4) / spread**4 - 3
        records["norm"] = np.sqrt(n) * np.hypot(mean, std)
        records["abs_mean"] = magnitude / n
    records["min"], records["max"] = low, high
    records["abs_max"] = np.maximum(np.abs(low), np.abs(high))
    for name in ("mean", "std", "norm", "min", "max", "abs_max", "abs_mean"):
        records[name][bad == size] = np.nan
    return records


# -- histograms --------------------------------------------------------------------------------


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


def bins(group: ShapeGroup, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """[tensor, key]: counts of the elements (times `factor`); and how many are +Inf.

    Sign and exponent of every element are counted without a wait: `torch.bincount` asks the device
    for its largest number, and `torch.histc` refuses to be deterministic; adding ones to counters
    of whole numbers does neither.
    """
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


def bins_of(counts: NDArray[np.float64]) -> BinTable:
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


def histogram_of(record: np.void, counts: Bins, above: float, shift: int = 0) -> Histogram:
    """With zeros and non-finite elements from the record, and all exponents raised by `shift`."""
    infinite = int(record["pos_inf"] + record["neg_inf"])
    return Histogram(
        counts.first_exponent + shift,
        counts.negative,
        counts.positive,
        int(record["zeros"]),
        int(record["nan"]),
        int(above),
        infinite - int(above),
    )


# -- groups whose numbers are on their way -------------------------------------------------------


@dataclass(frozen=True)
class SentGroup:
    """Where the numbers of tensors of one shape lie in a transfer."""

    indices: list[int]
    widths: list[int]
    """Columns of the pieces the tensors were measured in."""
    sums: slice
    bins: slice


def sent_records(groups: Sequence[SentGroup], total: int, arrived: Parts) -> NDArray[np.void]:
    """The kernel's records of all tensors; empty ones where nothing was sent."""
    records = np.zeros(total, kernel.MOMENTS)
    for group in groups:
        records[group.indices] = records_of(group.widths, arrived[group.sums])
    return records


def histograms_of(
    groups: Sequence[SentGroup], arrived: Parts, records: NDArray[np.void], shift: int = 0
) -> HistogramTable:
    """Histograms with all exponents raised by `shift`; nothing where none were asked for."""
    histograms: list[Histogram | None] = [None] * len(records)
    for group in groups:
        if not arrived[group.bins]:
            continue
        counts, above = arrived[group.bins]
        table = bins_of(counts.reshape(len(group.indices), -1))
        for index, cut, infinite in zip(group.indices, table, above, strict=True):
            histogram = histogram_of(records[index], cut, infinite, shift)
            if histogram.count == records["count"][index]:  # none left the range of the type
                histograms[index] = histogram
    return HistogramTable.of(histograms)


# -- rows of a tensor --------------------------------------------------------------------------


def touched(group: ShapeGroup) -> Tensor:
    """[tensor, row]: whether a row has an element that is not zero."""
    lines = group.matrix.view(len(group.indices), group.rows, -1)
    sizes: Tensor = torch.linalg.vector_norm(lines, _INFINITY, dim=2)
    return sizes != 0


def spread(group: ShapeGroup) -> Tensor:
    """[2, tensor]: largest distance of some rows from row 0, and largest norm among them all."""
    device, kind = group.matrix.device, wide(group.matrix.device)
    lines = group.matrix.view(len(group.indices), group.rows, -1)
    rows = lines.index_select(1, _chosen(group.rows, device)).to(kind)
    # In units of the largest element: no square leaves the range of the type.
    unit = torch.linalg.vector_norm(rows, _INFINITY, dim=(1, 2), keepdim=True)
    rows = rows / unit.clamp_min(torch.finfo(kind).tiny)
    away = torch.linalg.vector_norm(rows - rows[:, :1], 2, dim=2)
    return torch.stack([away.amax(1), torch.linalg.vector_norm(rows, 2, dim=2).amax(1)])


def spread_of(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """What `spread` has found, as the kernel gives it: 0 where all rows are zero."""
    distance, size = numbers.reshape(2, -1)
    with np.errstate(all="ignore"):
        return np.where(size == 0, 0.0, distance / size)


@lru_cache(maxsize=256)
def _chosen(rows: int, device: torch.device) -> Tensor:
    return torch.tensor([0, *spread_rows(rows)]).to(device, non_blocking=True)


def zero_rows(group: ShapeGroup) -> Tensor:
    """[tensor]: rows that are all zero."""
    return touched(group).logical_not_().sum(1)


# -- fingerprints ------------------------------------------------------------------------------


def fingerprint(group: ShapeGroup) -> Tensor:
    """[tensor, 4]: a 64-bit hash of the bits as four 16-bit numbers, which any float holds."""
    device, start = group.matrix.device, 0
    total = torch.zeros(len(group.indices), dtype=torch.int64, device=device)
    for piece in group.pieces:
        words = piece.contiguous().view(BITS[piece.itemsize]).to(torch.int64)
        odd = torch.arange(start * 2 + 1, (start + piece.shape[1]) * 2, 2, device=device)
        total += words.mul_(odd).sum(1) if piece.itemsize < 8 else (words * odd).sum(1)
        start += piece.shape[1]
    return (total[:, None] >> _shifts(device)) & 0xFFFF


@lru_cache(maxsize=16)
def _shifts(device: torch.device) -> Tensor:
    return torch.tensor(_SHIFTS).to(device)


def fingerprints_of(numbers: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The hashes, from what `fingerprint` has found."""
    words = numbers.reshape(-1, len(_SHIFTS)).astype(np.uint64) << np.array(_SHIFTS, np.uint64)
    hashes: NDArray[np.uint64] = np.bitwise_or.reduce(words, axis=1)
    return hashes
