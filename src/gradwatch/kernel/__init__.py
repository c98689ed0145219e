"""The one pass over memory: moments, counts, histograms, updates and hashes of tensors.

Every operation exists twice behind these functions: in C (`_native`, built where there is a
compiler) and in numpy (`plain`). Both fill arrays that are made here, and both refuse a batch that
must not be read (a null pointer, a negative count, an unknown type, lengths that differ) with
ValueError. The environment variable GRADWATCH_KERNEL (avx512, avx2, base, none) forces one
instruction set or, with none, numpy.
"""

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.kernel import plain
from gradwatch.kernel.batch import ADAM as ADAM
from gradwatch.kernel.batch import DOUBLE_BINS, FLOAT_BINS, Measurement
from gradwatch.kernel.batch import MOMENTS as MOMENTS
from gradwatch.kernel.batch import UPDATE as UPDATE
from gradwatch.kernel.batch import Batch as Batch
from gradwatch.kernel.batch import Bins as Bins
from gradwatch.kernel.batch import BinTable as BinTable
from gradwatch.kernel.batch import Dtype as Dtype
from gradwatch.kernel.batch import batch_of as batch_of
from gradwatch.kernel.batch import merge as merge
from gradwatch.kernel.plain import Gradients as Gradients

try:
    from gradwatch.kernel import _native
except ImportError:  # not built for this Python and machine
    _native = None  # type: ignore[assignment]

VARIABLE, NUMPY, MOST_THREADS = "GRADWATCH_KERNEL", "none", 64
MOST_BINS = 2 * DOUBLE_BINS[1]
"""Of one tensor, with both signs."""


# -- which implementation answers ----------------------------------------------------------------


def available() -> tuple[str, ...]:
    """The instruction sets of this machine and build, the best first; "none" (numpy) always."""
    return (*(_native.instruction_sets() if _native else ()), NUMPY)


def select(name: str) -> None:
    """Use this instruction set (one of `available()`) from now on, for tests and benchmarks."""
    global instruction_set, nonfinite, gather, gradients, _kernel
    if name not in available():
        raise ValueError(f"{VARIABLE} is {name!r}; here it can be {', '.join(available())}.")
    if name != NUMPY:
        _native.select(name)
    _kernel = plain if name == NUMPY else _native
    # The functions themselves, not wrappers round them: probes call them for every layer.
    nonfinite, gather = _kernel.nonfinite, getattr(_kernel, "gather", None)
    gradients, instruction_set = _kernel.Gradients, name


def set_threads(most: int) -> None:
    """Let every pass over at least two million elements use up to this many threads (at first one).

    They live as long as the call. The results are the same, bit for bit, for any number. numpy's
    kernel works in the calling thread.
    """
    if _native:
        _native.set_threads(max(1, min(most, MOST_THREADS)))


def use_exchange(capsule: Any) -> bool:
    """Let C see tensors through DLPack's exchange interface (None: not); whether it does.

    Without it every tensor is asked for its type, its shape and its address, one after the other.
    """
    return bool(_native and _native.use_exchange(capsule))


instruction_set = ""
_kernel: ModuleType = plain
nonfinite = plain.nonfinite
"""nonfinite(pointer, count, dtype, stride): how many of the elements 0, stride, 2·stride … < count
are NaN or infinite. The C function itself, for callers to whom a Python frame is dear."""
gather: Callable[..., list[int]] | None = None
"""gather(tensors, types, dtypes, arrays): fill a batch's arrays with where torch's tensors lie; the
indices of those that are None or not ordinary. None where there is no C: callers do without."""
gradients: Callable[..., Gradients] = Gradients
"""gradients(refs, rows, types, dtypes): what looks at gradients of parameters, step by step.
`refs` are weak references, `rows` the sizes of dimension 0 (0 for one that is no matrix), `types`
torch's Tensor and Parameter, `dtypes` its dtypes in the order of the kernel's."""
select(os.environ.get(VARIABLE) or available()[0])


# -- one pass over tensors -----------------------------------------------------------------------


def _each(values: ArrayLike, batch: Batch, kind: type[Any]) -> NDArray[Any]:
    """One value per tensor, or one for all, as a contiguous array; or ValueError."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, kind), (len(batch),)))


def measure(
    batch: Batch, *, bins: bool = False, touched: Sequence[NDArray[np.uint8] | None] | None = None
) -> Measurement:
    """The record (MOMENTS) of every tensor, and what else is asked for, in one pass.

    With `bins` also the exact signed power-of-two histograms. Sets `touched[i][row]` to 1 where a
    row of tensor i has an element that is not zero.
    """
    records = np.empty(len(batch), MOMENTS)
    width = (DOUBLE_BINS if (batch.dtypes == Dtype.F64).any() else FLOAT_BINS)[1]
    exponents, sizes = np.zeros((2, len(batch)), np.int64)
    # Room for every bin there is. Memory that nobody writes to costs nothing.
    counts = np.empty(len(batch) * 2 * width if bins else 0, np.uint64)
    _kernel.measure(batch.arrays, records, touched, (exponents, sizes, counts) if bins else None)
    return Measurement(records, BinTable(exponents, sizes, counts[: 2 * sizes.sum()].copy()))


def step(
    before: Batch | None,
    after: Batch | None,
    grads: Batch | None = None,
    second_moments: Batch | None = None,
    *,
    correction: ArrayLike = 1.0,
    eps: ArrayLike = 0.0,
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """What an optimizer's step changed (UPDATE) and Adam's ratio (ADAM), in one pass.

    The second is how g/(√v̂+ε) is distributed, with v̂ = v / correction. A gradient or second moment
    with count 0 is none, and its ratio NaN. Without `before` and `after` only the ratios are
    taken, without `second_moments` only the updates; the other array is empty.
    """
    first = grads if before is None else before
    if first is None or (before is None) != (after is None) or (second_moments and not grads):
        raise ValueError("expected weights before and after the step, or gradients")
    updates = np.empty(0 if before is None else len(first), UPDATE)
    ratios = np.empty(0 if second_moments is None else len(first), ADAM)
    batches = (None if x is None else x.arrays for x in (before, after, grads, second_moments))
    values = (_each(x, first, np.float64) for x in (correction, eps))
    found = (x if len(x) else None for x in (updates, ratios))
    _kernel.step(*batches, *values, *found)
    return updates, ratios


def hashes(batch: Batch, offsets: ArrayLike) -> NDArray[np.uint64]:
    """A 64-bit hash of the bits of every tensor; the hashes of shards add up modulo 2^64."""
    sums = np.empty(len(batch), np.uint64)
    _kernel.hashes(batch.arrays, _each(offsets, batch, np.int64), sums)
    return sums


def row_spread(batch: Batch) -> NDArray[np.float32]:
    """How far up to 16 fixed rows lie from row 0, relative to the largest row norm among them.

    0 where all are equal; NaN with fewer than two rows, without elements, or with a non-finite one.
    """
    spreads = np.full(len(batch), np.nan, np.float32)
    for i, tensor in enumerate(plain.tensors(batch.arrays)):
        if tensor.rows > 1 and len(tensor.raw):
            table = tensor._replace(raw=tensor.raw.reshape(tensor.rows, -1))
            others = min(16, tensor.rows - 1)
            rows = table.values([0, *(1 + k * (tensor.rows - 1) // others for k in range(others))])
            with np.errstate(invalid="ignore"):
                rows /= np.abs(rows).max() or 1.0  # so that no square leaves the range
                distances, norms = (np.linalg.norm(x, axis=1) for x in (rows - rows[0], rows))
                spreads[i] = distances.max() / (norms.max() or 1.0)
    return spreads


def copy(source: Batch, target: Batch) -> None:
    """Copy every tensor's bytes into memory of the same size and type."""
    _kernel.copy(source.arrays, target.arrays)


def measure_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[np.void]:
    """The records (MOMENTS) of numpy arrays of any type and memory order."""
    batch, _owners = batch_of(arrays)  # they have to live until the end
    return measure(batch).records
