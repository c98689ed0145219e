"""The one pass over memory: moments, counts, histograms, updates, sketches and hashes of tensors.

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
from gradwatch.kernel.batch import (
    ADAM,
    DOUBLE_BINS,
    FLOAT_BINS,
    MOMENTS,
    NO_BINS,
    SKETCH_WIDTH,
    UPDATE,
    Batch,
    Beyond,
    Bins,
    BinTable,
    Cells,
    Dtype,
    Measurement,
    Places,
    batch_of,
    merge,
    per_tensor,
    sparse_bins,
)

try:
    from gradwatch.kernel import _native
except ImportError:  # not built for this Python and machine
    _native = None  # type: ignore[assignment]

__all__ = [
    "ADAM",
    "MOMENTS",
    "SKETCH_WIDTH",
    "UPDATE",
    "Batch",
    "Beyond",
    "BinTable",
    "Bins",
    "Cells",
    "Dtype",
    "Measurement",
    "Places",
    "available",
    "batch_of",
    "copy",
    "count_cells",
    "fill_rows",
    "gather",
    "hashes",
    "instruction_set",
    "list_beyond",
    "measure",
    "measure_arrays",
    "merge",
    "nonfinite",
    "places_of",
    "read",
    "row_spread",
    "sample",
    "select",
    "set_threads",
    "sketch",
    "sparse_bins",
    "step",
    "use_exchange",
]

VARIABLE = "GRADWATCH_KERNEL"
NUMPY = "none"
MOST_THREADS = 64


# -- which implementation answers ----------------------------------------------------------------


def available() -> tuple[str, ...]:
    """The instruction sets of this machine and build, the best first; "none" (numpy) always."""
    return (*(_native.instruction_sets() if _native else ()), NUMPY)


def select(name: str) -> None:
    """Use this instruction set (one of `available()`) from now on, for tests and benchmarks."""
    global instruction_set, nonfinite, gather, sample, _kernel
    if name not in available():
        raise ValueError(f"{name!r} is none of {', '.join(available())}")
    if name != NUMPY:
        _native.select(name)
    _kernel = plain if name == NUMPY else _native
    # The function itself, not a wrapper round it: probes call it for every layer.
    nonfinite = _kernel.nonfinite
    gather, sample = (getattr(_kernel, name, None) for name in _ONLY_NATIVE)
    instruction_set = name


def set_threads(most: int) -> None:
    """Let every pass over at least two million elements use up to this many threads (at first one).

    They live as long as the call. The results are the same, bit for bit, for any number. numpy's
    kernel works in the calling thread.
    """
    if most < 1:
        raise ValueError(f"expected at least one thread, got {most}")
    if _native:
        _native.set_threads(min(most, MOST_THREADS))


def use_exchange(capsule: Any) -> bool:
    """Let `gather` and `sample` see tensors through DLPack's exchange interface; None: not.

    Whether they do: an interface of another version is not used. Without it every tensor is asked
    for its type, its shape and its address, one after the other.
    """
    return bool(_native and _native.use_exchange(capsule))


def _first() -> str:
    """What the environment asks for, or the best there is."""
    wanted = os.environ.get(VARIABLE) or available()[0]
    if wanted not in available():
        raise ValueError(
            f"{VARIABLE} is {wanted!r}; on this machine it can be {', '.join(available())}."
        )
    return wanted


instruction_set = ""
_kernel: ModuleType = plain
nonfinite = plain.nonfinite
"""nonfinite(pointer, count, dtype, stride): how many of the elements 0, stride, 2·stride … < count
are NaN or infinite. The C function itself, for callers to whom a Python frame is dear."""
_ONLY_NATIVE = ("gather", "sample")
fill_rows: Callable[..., int] | None = None
"""fill_rows(rows, empty, has_value, records, states, factor, memory, sketches): how many tensors
are mirrored; see `stats.rows`, which does without where there is no C, as the callers of the next
two do."""
gather: Callable[..., list[int]] | None = None
"""gather(tensors, types, dtypes, batch): fill a batch's arrays with where torch's tensors lie; the
indices of those that are None or not ordinary."""
sample: Callable[..., bytes | None] | None = None
"""sample(tensor, types, dtypes, most): the bits of that many elements, None if not ordinary."""
select(_first())


# -- one pass over tensors -----------------------------------------------------------------------


def measure(
    batch: Batch,
    *,
    bins: bool = False,
    seeds: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    wholes: ArrayLike | None = None,
    touched: Sequence[NDArray[np.uint8] | None] | None = None,
    places: Places | None = None,
) -> Measurement:
    """The record (MOMENTS) of every tensor, and what else is asked for, in one pass.

    With `bins` also the exact signed power-of-two histograms; with `seeds` and `offsets` also the
    sketches (see `sketch`), or with `places`, which are those three made by `places_of` once for
    many calls. Sets `touched[i][row]` to 1 where a row of tensor i has an element that is not zero.
    """
    count = len(batch.pointers)
    records = np.empty(count, MOMENTS)
    if seeds is not None:
        places = places_of(batch, seeds, offsets, wholes)
    sketches = None if places is None else np.empty((count, SKETCH_WIDTH), np.float32)
    sought = None if places is None else (*places, sketches)
    table = None
    if bins:
        _, width = DOUBLE_BINS if (batch.dtypes == Dtype.F64).any() else FLOAT_BINS
        exponents, sizes = np.empty((2, count), np.int64)
        # Room for every bin there is. Memory that nobody writes to costs nothing.
        table = exponents, sizes, np.empty(count * 2 * width, np.uint64)
    _kernel.measure(batch.arrays, records, touched, table, sought)
    found = NO_BINS if table is None else BinTable(*table[:2], table[2][: 2 * sizes.sum()].copy())
    return Measurement(records, found, sketches)


def sketch(
    batch: Batch, seeds: ArrayLike, offsets: ArrayLike, wholes: ArrayLike | None = None
) -> NDArray[np.float32]:
    """32 signed sums per tensor whose inner products estimate those of the tensors.

    `offsets` are the flat indices of the first elements in the whole tensor, `wholes` the whole
    tensors' sizes (without: the counts): shards add up. Of a whole of more than 65,536 elements one
    eighth is read: of every 256 elements 32 neighbours, chosen by the seed.
    """
    sketches = np.empty((len(batch), SKETCH_WIDTH), np.float32)
    _kernel.sketch(batch.arrays, (*places_of(batch, seeds, offsets, wholes), sketches))
    return sketches


def places_of(
    batch: Batch,
    seeds: ArrayLike,
    offsets: ArrayLike | None = None,
    wholes: ArrayLike | None = None,
) -> Places:
    """Seeds, offsets and sizes of the wholes, one for each tensor of the batch."""
    return (
        per_tensor(seeds, batch, np.uint64),
        per_tensor(np.zeros(len(batch)) if offsets is None else offsets, batch, np.int64),
        per_tensor(batch.counts if wholes is None else wholes, batch, np.int64),
    )


def step(
    before: Batch | None,
    after: Batch | None,
    grads: Batch | None = None,
    second_moments: Batch | None = None,
    *,
    correction: ArrayLike | None = None,
    eps: ArrayLike | None = None,
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """What an optimizer's step changed (UPDATE) and Adam's ratio (ADAM), in one pass.

    The second is how g/(√v̂+ε) is distributed, with v̂ = v / correction. A gradient or second moment
    with count 0 is none, and its ratio NaN. Without `before` and `after` only the ratios are
    taken, without `second_moments` only the updates; the other array is empty.
    """
    tensors = grads if before is None else before
    if tensors is None:
        raise ValueError("expected weights before and after the step, or gradients")
    updates = np.empty(0 if before is None else len(tensors), UPDATE)
    ratios = np.empty(0 if second_moments is None else len(tensors), ADAM)
    batches = (before, after, grads, second_moments)
    _kernel.step(
        *(None if batch is None else batch.arrays for batch in batches),
        None if correction is None else per_tensor(correction, tensors, np.float64),
        None if eps is None else per_tensor(eps, tensors, np.float64),
        None if before is None else updates,
        None if second_moments is None else ratios,
    )
    return updates, ratios


def hashes(batch: Batch, offsets: ArrayLike) -> NDArray[np.uint64]:
    """A 64-bit hash of the bits of every tensor; the hashes of shards add up modulo 2^64."""
    sums = np.empty(len(batch), np.uint64)
    _kernel.hashes(batch.arrays, per_tensor(offsets, batch, np.int64), sums)
    return sums


def row_spread(batch: Batch) -> NDArray[np.float32]:
    """How far up to 16 fixed rows lie from row 0, relative to the largest row norm among them."""
    spreads = np.empty(len(batch), np.float32)
    _kernel.row_spread(batch.arrays, spreads)
    return spreads


def count_cells(batch: Batch, exponents: ArrayLike, firsts: ArrayLike, *, cells: int) -> Cells:
    """Exact counts on one uniform grid per tensor: `cells` (at most 256) cells of 2^exponent.

    The first begins at first · 2^exponent; `firsts` are whole numbers.
    """
    counts = np.empty((len(batch), max(cells, 0)), np.uint64)
    outside = np.empty((len(batch), 3), np.uint64)
    widths, starts = per_tensor(exponents, batch, np.int64), per_tensor(firsts, batch, np.float64)
    _kernel.count_cells(batch.arrays, (widths, starts, counts, outside), cells)
    return Cells(counts, *outside.T)


def list_beyond(batch: Batch, lows: ArrayLike, highs: ArrayLike, *, most: int) -> Beyond:
    """The finite elements x ≤ low or x ≥ high of every tensor: how many, where the first `most`."""
    totals = np.empty(len(batch), np.uint64)
    indices = np.empty((len(batch), max(most, 0)), np.int64)
    low, high = (per_tensor(limits, batch, np.float64) for limits in (lows, highs))
    _kernel.list_beyond(batch.arrays, (low, high, totals, indices), most)
    return Beyond(totals, [row[:n] for row, n in zip(indices, totals.tolist(), strict=True)])


def copy(source: Batch, target: Batch) -> None:
    """Copy every tensor's bytes into memory of the same size and type."""
    _kernel.copy(source.arrays, target.arrays)


def read(batch: Batch) -> float:
    """Read every byte once and do next to nothing: the floor the benchmark compares with."""
    total: float = _kernel.read(batch.arrays)
    return total


def measure_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[np.void]:
    """The records (MOMENTS) of numpy arrays of any type and memory order."""
    batch, owners = batch_of(arrays)
    records = measure(batch).records
    del owners  # they had to live until here
    return records
