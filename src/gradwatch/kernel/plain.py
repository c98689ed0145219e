"""The kernel in numpy: slower, needs no compiler, and gives the same answers.

The functions without an underscore are those of `_native`, so that either module can stand behind
the functions of `gradwatch.kernel`.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import frexp, nan, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import norm
from numpy.typing import NDArray

from gradwatch.kernel.batch import DOUBLE_BINS, MOMENTS, Arrays, Dtype, joined, merge
from gradwatch.stats import Family, State
from gradwatch.stats.rows import RowMemory, blank, mirrored, moment_rows

PIECE, RUN = 1 << 20, 4
"""Elements handled at a time, and of a sample that lie together: it takes time to reach them."""
SAMPLED, COMPARED = 64, 1024
"""Elements of a gradient that are kept to find clipping, and to take cosines."""
NONE, SCALED, CHANGED, UNKNOWN = range(4)
"""What has become of the gradients since the end of backward."""
TOLERANCE, LEAST_FACTOR = 1e-5, 2.0**-10

_GOLDEN, _FIRST = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_FLOATS: dict[int, str] = {Dtype.F32: "f4", Dtype.F64: "f8", Dtype.F16: "f2"}
_EPSILON: dict[int, float] = dict(zip(Dtype, (2.0**-23, 2.0**-52, 2.0**-7, 2.0**-10), strict=True))
_NO_SHAPE: dict[str, Any] = {"std": 0.0, "skewness": 0.0, "kurtosis": -3.0}
Refs = Sequence[Callable[[], Any]]
_Reals = NDArray[np.float64]
_Bins = tuple[NDArray[Any], ...]
"""First exponents and sizes of the stretches, and the counts: the first of them are filled."""
_Touched = Sequence[NDArray[np.uint8] | None] | None


# -- raw memory ----------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """The elements as unsigned integers of their size (equal means equal bits), and their type."""

    raw: NDArray[np.unsignedinteger]
    dtype: int
    rows: int = 0

    @classmethod
    def at(cls, pointer: int, count: int, dtype: int, rows: int = 0) -> "Tensor":
        """What lies in memory there, without a copy."""
        size = Dtype(dtype).itemsize
        if (count and not pointer) or pointer % size or rows < 0 or count % max(rows, 1):
            raise ValueError("what is said of a tensor's memory cannot be true")
        memory = (ctypes.c_uint8 * (count * size)).from_address(pointer)
        return cls(np.ctypeslib.as_array(memory).view(f"u{size}"), dtype, rows)

    def values(self, part: Any = slice(None)) -> _Reals:
        """The elements as float64, exactly."""
        raw, dtype = self.raw[part], self.dtype
        if dtype == Dtype.BF16:  # the upper half of a float32
            raw, dtype = raw.astype(np.uint32) << np.uint32(16), Dtype.F32
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            reals: _Reals = raw.view(_FLOATS[dtype]).astype(np.float64)
        return reals

    def pieces(self) -> Iterator[_Reals]:
        """The elements in stretches, so that temporaries stay small beside the tensor."""
        return (self.values(slice(at, at + PIECE)) for at in range(0, len(self.raw), PIECE))

    def sample(self, most: int) -> "Tensor":
        """A copy of at most so many elements, always the same.

        Runs of them, one from each of as many equal stretches, at a place in it that follows the
        golden ratio: a plain stride would fall into step with the rows of a matrix.
        """
        if len(self.raw) <= most:
            return self._replace(raw=self.raw.copy())
        runs = np.arange(most // RUN, dtype=np.uint64)
        places = runs + (runs * _GOLDEN >> np.uint64(11)) * 2.0**-53
        starts = (places * (len(self.raw) // RUN / len(runs))).astype(np.int64) * RUN
        return self._replace(raw=self.raw[(starts[:, None] + np.arange(RUN)).ravel()])

    def fits(self, other: "Tensor") -> bool:
        """Whether the other has as many elements of the same type."""
        return self.dtype == other.dtype and len(self.raw) == len(other.raw)


_NOTHING = Tensor(np.zeros(0, np.uint32), Dtype.F32)


def tensors(arrays: Arrays) -> list[Tensor]:
    """The tensors of a batch."""
    return [Tensor.at(*where) for where in zip(*(array.tolist() for array in arrays), strict=True)]


def copy(source: Arrays, target: Arrays, /) -> None:
    """Copy the bytes of every tensor."""
    for old, new in zip(tensors(source), tensors(target), strict=True):
        new.raw[:] = old.raw


def nonfinite(pointer: int, count: int, dtype: int, stride: int, /) -> int:
    """How many of the elements 0, stride, 2·stride … are NaN or infinite."""
    seen = Tensor.at(pointer, count, dtype).values(slice(None, None, stride))
    return int(np.count_nonzero(~np.isfinite(seen)))


def hashes(arrays: Arrays, offsets: NDArray[np.int64], sums: NDArray[np.uint64], /) -> None:
    """Sum of the scrambled (bits, flat index) of every tensor's elements, modulo 2^64."""
    sums[:] = 0
    for i, (tensor, offset) in enumerate(zip(tensors(arrays), offsets.view("u8"), strict=True)):
        for start in range(0, len(tensor.raw), PIECE):
            part = tensor.raw[start : start + PIECE]
            # The index is mixed in, so that the hashes of shards add up to that of the whole.
            places = np.arange(start, start + len(part), dtype=np.uint64) + offset
            word = part + places * _GOLDEN
            word = (word ^ (word >> np.uint64(32))) * _FIRST
            sums[i : i + 1] += (word ^ (word >> np.uint64(29))).sum(dtype=np.uint64)


# -- moments, histograms, rows ------------------------------------------------------------------


def measure(
    arrays: Arrays, records: NDArray[np.void], touched: _Touched, bins: _Bins | None, /
) -> None:
    """Fill the record of every tensor, and histograms and touched rows where asked to."""
    records[:] = _measure(tensors(arrays), touched)
    if bins is not None:
        _fill_bins(tensors(arrays), bins, 1.0)


def _measure(tensors: list[Tensor], touched: _Touched) -> NDArray[np.void]:
    records = np.array([_record(tensor.pieces()) for tensor in tensors], MOMENTS)
    for i, tensor in enumerate(tensors):
        if tensor.rows and len(tensor.raw):
            table = tensor.raw.reshape(tensor.rows, -1)
            parts = np.array_split(table, 1 + table.size // PIECE)
            # A double of the bits drops the sign, so that −0 is zero too.
            marks = np.concatenate([(part << 1).any(axis=1) for part in parts])
            records["zero_rows"][i] = np.count_nonzero(~marks)
            if touched is not None and (known := touched[i]) is not None:
                known |= marks
    return records


def _record(pieces: Iterator[_Reals]) -> np.void:
    """The record of everything in the pieces; rows are not looked at."""
    return merge(np.array([_moments(x) for x in pieces], MOMENTS))


def _moments(x: _Reals) -> tuple[float, ...]:
    some = x[np.isfinite(x)]
    odd = x == 0.0, np.isnan(x), x == np.inf, x == -np.inf
    counts = x.size, *(int(np.count_nonzero(which)) for which in odd), 0
    parts = dict.fromkeys(("min", "max", "mean"), some) | {"abs_mean": np.abs(some)} | _NO_SHAPE
    return *counts, *(joined(1.0, parts) if some.size else [nan] * 9)


def _fill_bins(tensors: list[Tensor], bins: _Bins, multiplier: float) -> None:
    """Histograms of all elements times the multiplier; no product is out of range."""
    (mantissa, shift), end = frexp(multiplier), 0
    for i, tensor in enumerate(tensors):
        dense = np.zeros((DOUBLE_BINS[1] + 1, 2), np.int64)
        for x in tensor.pieces():
            halves, exponents = np.frexp(x[np.isfinite(x) & (x != 0.0)])
            places = exponents + np.frexp(halves * mantissa)[1] - DOUBLE_BINS[0]
            found = np.bincount(2 * places + (halves > 0), minlength=dense.size)
            dense += found.reshape(dense.shape)
        at = np.flatnonzero(dense.any(axis=1))
        used = dense[at[0] : at[-1] + 1] if len(at) else dense[:0]
        # frexp gives mantissas in [½, 1), one power of two below the convention of bins.
        bins[0][i] = at[0] + DOUBLE_BINS[0] + shift - 1 if len(at) else 0
        bins[1][i], begin, end = len(used), end, end + used.size
        bins[2][begin:end] = used.T.ravel()


# -- what an optimizer's step did ----------------------------------------------------------------


def step(*arguments: Any) -> None:
    """Updates, Adam's ratios, or both; `_native.pyi` says of what."""
    *batches, correction, eps, updates, ratios = arguments
    nothing = [_NOTHING] * next(len(batch[0]) for batch in batches if batch is not None)
    known = (nothing if batch is None else tensors(batch) for batch in batches)
    for i, (old, new, gradient, second) in enumerate(zip(*known, strict=True)):
        if updates is not None:
            updates[i] = _update(old, new, gradient)
        if ratios is not None:
            ratios[i] = _adam(gradient, second, correction[i], eps[i])


def _update(old: Tensor, new: Tensor, gradient: Tensor) -> tuple[float, ...]:
    same = old.raw == new.raw
    moved = (gradient.raw << 1) != 0  # without the sign: −0 is zero
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is left out
        change = _record(b - a for a, b in zip(old.pieces(), new.pieces(), strict=True))
    norms = np.nan_to_num([change["norm"], _record(old.pieces())["norm"]], posinf=np.inf)
    counts = map(np.count_nonzero, (~same, moved & same if len(moved) else (), moved))
    return *norms, *counts


def _adam(gradient: Tensor, second: Tensor, correction: float, eps: float) -> tuple[float, float]:
    """How g/(√v̂+ε) is distributed, with v̂ = v / correction; NaN where one of them is missing."""
    if not len(gradient.raw) or not len(second.raw):
        return nan, nan
    pairs = zip(gradient.pieces(), second.pieces(), strict=True)
    with np.errstate(all="ignore"):  # a fresh second moment is 0, a damaged one negative
        record = _record(g / (np.sqrt(v / correction) + eps) for g, v in pairs)
        under = sum(np.count_nonzero(np.sqrt(v / correction) < eps) for v in second.pieces())
    return np.hypot(record["mean"], record["std"]), under / len(gradient.raw)


# -- the gradients of a step ---------------------------------------------------------------------


class Gradients:
    """Looks at the gradients of an optimizer's parameters, and remembers what it needs to.

    Tensors are known by `types` and `dtypes` (those of the kernel, in its order), so that nothing
    here imports torch. Everything of the user's is held weakly.
    """

    def __init__(self, refs: Refs, rows: Sequence[int], types: Any, dtypes: Any) -> None:
        self._refs, self._types = refs, types
        self._dtypes = {dtype: kind for kind, dtype in enumerate(dtypes)}
        self._memory = RowMemory(rows)
        self._last: dict[int, Tensor] = {}
        self._kept: dict[int, tuple[int, Tensor]] = {}
        self.forget()

    def sample(self, index: int) -> bool:
        """Keep elements of this parameter's gradient as backward has left it."""
        tensor = self._look(getattr(self._refs[index](), "grad", None))
        if tensor is not _NOTHING:
            self._samples[index] = tensor.sample(SAMPLED)
        return tensor is not _NOTHING

    def forget(self) -> None:
        """Drop these samples: the optimizer has stepped."""
        self._samples: dict[int, Tensor] = {}
        self._transform = NONE, 1.0, True

    def keep_weights(self, first: int, count: int, most: int) -> None:
        """Keep at most `most` elements of so many parameters, the first again after the last."""
        size = len(self._refs)
        places = (i % size for i in range(first, first + min(count, size)))
        seen = ((i, self._look(self._refs[i]())) for i in places)
        self._kept = {i: (most, x.sample(most)) for i, x in seen if x is not _NOTHING}

    @np.errstate(all="ignore")
    def changed_weights(self) -> list[tuple[int, float]] | None:
        """Which kept weights have other bits now and how far they are off; None without any kept.

        The distance is the norm of the difference in parts of the larger norm: 0 to 2.
        """
        kept, self._kept = self._kept, {}
        changes = []
        for i, (most, was) in kept.items():
            now = self._look(self._refs[i]()).sample(most)
            if was.fits(now) and (was.raw != now.raw).any():
                x, y = was.values(), now.values()
                distance = norm(x - y) / max(norm(x), norm(y))
                changes.append((i, float(np.nan_to_num(distance, posinf=0.0))))
        return changes if kept else None

    def record(
        self,
        rows: NDArray[np.void],
        states: NDArray[np.uint8],
        bins: _Bins | None,
        given: Mapping[int, Any] | None,
        multiplier: float | None,
        scale: float,
        cosines: bool,
    ) -> tuple[bool, list[int] | None, int, float, bool, int, list[tuple[int, float]] | None]:
        """Measure all gradients, as they were before they were scaled: rows and states.

        (measured, others, kind, factor, exact, mirrored, outside). Nothing is measured where
        tensors that are not ordinary (`others`) are not `given` in a form that is, and where a
        factor was found that the caller has to judge and give as `multiplier`.
        """
        outside = self.changed_weights()
        gradients = [getattr(ref(), "grad", None) for ref in self._refs]
        seen = [self._look(gradient) for gradient in gradients]
        others = [i for i, g in enumerate(gradients) if g is not None and seen[i] is _NOTHING]
        if others and given is None:
            return False, others, *self._transform, 0, outside
        states[:] = [State.NO_GRADIENT if g is None else State.MEASURED for g in gradients]
        for i in others:
            seen[i] = self._look((given or {}).get(i))
            states[i] = State.UNSUPPORTED if seen[i] is _NOTHING else State.MEASURED
        if multiplier is None:
            self._transform = kind, factor, exact = self._compare(seen)
            usable = scale > 0.0 and factor >= LEAST_FACTOR and not (exact and factor < 1.0)
            if kind == SCALED and not usable:
                return False, None, *self._transform, 0, outside
            if kind == CHANGED:
                states[states == State.MEASURED] = State.CLIPPED
            multiplier = 1.0 / (factor * (scale or 1.0))
        records = _measure(seen, self._memory.fresh(np.array([tensor.rows for tensor in seen])))
        rows[:] = moment_rows(Family.GRAD, records, states, multiplier)
        rows["grad_dead_rows"], rows["grad_untouched_rows"] = self._memory.remember()
        if cosines:
            rows["grad_cosine"] = [self._cosine(i, tensor) for i, tensor in enumerate(seen)]
        if bins is not None:
            _fill_bins(seen, bins, multiplier)
            for column, name in enumerate(("zeros", "nan", "pos_inf", "neg_inf")):
                bins[3].reshape(-1, 4)[:, column] = records[name]
        cut = np.count_nonzero(mirrored(blank(Family.GRAD, rows, states)))
        return True, None, *self._transform, int(cut), outside

    def _look(self, tensor: Any) -> Tensor:
        """The memory of an ordinary tensor, or of the plain one in a distributed one, or nothing.

        Ordinary: on the CPU, of a type the kernel reads, dense with dimension 0 outermost, and in
        memory that is there.
        """
        with suppress(Exception):  # None, or a tensor that answers otherwise
            if type(tensor) not in self._types:
                tensor = tensor._local_tensor
            shape, strides = tuple(tensor.shape), tensor.stride()
            count, dtype, at = prod(shape), self._dtypes[tensor.dtype], tensor.data_ptr()
            # From the innermost dimension; each begins where those inside it end.
            dims = sorted(zip(strides[1:], shape[1:], strict=True))
            dims.extend(zip(strides[:1], shape[:1], strict=True))
            whole = (n == 1 or by == prod(m for _, m in dims[:i]) for i, (by, n) in enumerate(dims))
            end = (tensor.storage_offset() + count) * Dtype(dtype).itemsize
            lies = not count or (at and end <= tensor.untyped_storage().nbytes() and all(whole))
            if lies and tensor.is_cpu and type(tensor) in self._types:
                return Tensor.at(at, count, dtype, shape[0] if count and len(shape) > 1 else 0)
        return _NOTHING

    def _compare(self, tensors: list[Tensor]) -> tuple[int, float, bool]:
        """How gradients differ from what backward left: kind, factor, whether that is exact."""
        both = ((was, tensors[i].sample(SAMPLED)) for i, was in self._samples.items())
        pairs = [(x.values(), y.values(), _EPSILON[x.dtype]) for x, y in both if x.fits(y)]
        return transform_between(pairs) if pairs or not self._samples else (UNKNOWN, 1.0, True)

    def _cosine(self, index: int, tensor: Tensor) -> float:
        """To the last gradient of this tensor, whose place it takes."""
        now, last = tensor.sample(COMPARED), self._last.get(index, _NOTHING)
        if len(tensor.raw):
            self._last[index] = now
        x, y = now.values(), last.values()
        with np.errstate(all="ignore"):
            return float(x @ y / (norm(x) * norm(y))) if now.fits(last) else nan


def transform_between(pairs: Sequence[tuple[_Reals, _Reals, float]]) -> tuple[int, float, bool]:
    """What became of samples: kind, the factor of all of them, whether that is exact.

    Each pair has the values before and after, and the epsilon of their type.
    """
    if all(np.array_equal(was, now, equal_nan=True) for was, now, _ in pairs):
        return NONE, 1.0, True
    factors, tolerance, exact = [], TOLERANCE, True
    for was, now, epsilon in pairs:
        x, y = (z[np.isfinite(was) & np.isfinite(now)] for z in (was, now))
        if not x.any() and not y.any():
            continue
        factor = float(x @ y) / (float(x @ x) or np.inf)
        own = max(TOLERANCE, 2.0 * epsilon)
        if factor <= 0.0 or norm(y - factor * x) > own * norm(y):
            return CHANGED, 1.0, False
        factors.append(factor)
        tolerance = max(tolerance, own)
        exact = exact and frexp(factor)[0] == 0.5 and np.array_equal(y, factor * x)
    if factors and max(factors) / min(factors) - 1.0 > tolerance:
        return CHANGED, 1.0, False
    return (SCALED, float(np.median(factors)), exact) if factors else (UNKNOWN, 1.0, True)
