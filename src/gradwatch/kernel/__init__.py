"""The one pass over memory: moments, counts, histograms, updates, sketches and hashes of tensors.

Every function exists twice, in C (`_native`, built where there is a compiler) and in numpy
(`plain`); the C one is used where it was built. The environment variable GRADWATCH_KERNEL
(avx512, avx2, base, none) forces one instruction set or, with none, numpy. A batch that must not be
read (a null pointer, a negative count, an unknown type, lengths that differ) raises ValueError.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.kernel import choice
from gradwatch.kernel.arrays import batch_of
from gradwatch.kernel.batch import (
    ADAM,
    MOMENTS,
    SKETCH_WIDTH,
    UPDATE,
    Batch,
    Beyond,
    Bins,
    Cells,
    Dtype,
    per_tensor,
)
from gradwatch.kernel.merging import merge

__all__ = [
    "ADAM",
    "MOMENTS",
    "SKETCH_WIDTH",
    "UPDATE",
    "Batch",
    "Beyond",
    "Bins",
    "Cells",
    "Dtype",
    "adam",
    "available",
    "batch_of",
    "copy",
    "count_cells",
    "hashes",
    "histograms",
    "instruction_set",
    "list_beyond",
    "measure",
    "measure_all",
    "measure_arrays",
    "measure_with_histograms",
    "measure_with_sketches",
    "merge",
    "nonfinite",
    "read",
    "row_spread",
    "select",
    "set_threads",
    "sketch",
    "step",
    "update",
]

Touched = Sequence[NDArray[np.uint8] | None] | None

available = choice.available
instruction_set: str = choice.first()
_kernel = choice.module(instruction_set)

nonfinite = _kernel.nonfinite
"""nonfinite(pointer, count, dtype, stride): how many of the elements 0, stride, 2·stride … < count
are NaN or infinite. The C function itself, for callers to whom a Python frame is dear."""


def select(name: str) -> None:
    """Use this instruction set (one of `available()`) from now on, for tests and benchmarks."""
    global instruction_set, nonfinite, _kernel
    _kernel = choice.module(name)
    nonfinite = _kernel.nonfinite
    instruction_set = name


def set_threads(most: int) -> None:
    """Let every pass over at least two million elements use up to this many threads (at first one).

    They live as long as the call. The results are the same, bit for bit, for any number.
    """
    choice.set_threads(most)


def measure(batch: Batch, *, touched: Touched = None) -> NDArray[np.void]:
    """The record (MOMENTS) of every tensor.

    Sets `touched[i][row]` to 1 where a row of tensor i has an element that is not zero.
    """
    return _kernel.measure(batch, touched)


def measure_with_histograms(
    batch: Batch, *, touched: Touched = None
) -> tuple[NDArray[np.void], list[Bins]]:
    """The records and the exact signed power-of-two histograms of every tensor, in one pass."""
    return _kernel.measure_with_histograms(batch, touched)


def measure_with_sketches(
    batch: Batch,
    seeds: ArrayLike,
    offsets: ArrayLike,
    *,
    wholes: ArrayLike | None = None,
    touched: Touched = None,
) -> tuple[NDArray[np.void], NDArray[np.float32]]:
    """The records and the sketches (see `sketch`) of every tensor, in one pass."""
    return _kernel.measure_with_sketches(batch, *_places(batch, seeds, offsets, wholes), touched)


def measure_all(
    batch: Batch,
    seeds: ArrayLike,
    offsets: ArrayLike,
    *,
    wholes: ArrayLike | None = None,
    touched: Touched = None,
) -> tuple[NDArray[np.void], list[Bins], NDArray[np.float32]]:
    """The records, the histograms and the sketches of every tensor, in one pass."""
    return _kernel.measure_all(batch, *_places(batch, seeds, offsets, wholes), touched)


def histograms(batch: Batch) -> list[Bins]:
    """The histograms alone."""
    return measure_with_histograms(batch)[1]


def update(before: Batch, after: Batch, grads: Batch | None = None) -> NDArray[np.void]:
    """What a step changed (UPDATE); a gradient with count 0 is no gradient."""
    return _kernel.update(before, after, grads)


def adam(
    grads: Batch, second_moments: Batch, *, correction: ArrayLike, eps: ArrayLike
) -> NDArray[np.void]:
    """How g/(√v̂+ε) is distributed (ADAM), with v̂ = v / correction."""
    return _kernel.adam(
        grads,
        second_moments,
        per_tensor(correction, grads, np.float64),
        per_tensor(eps, grads, np.float64),
    )


def step(
    before: Batch,
    after: Batch,
    grads: Batch,
    second_moments: Batch,
    *,
    correction: ArrayLike,
    eps: ArrayLike,
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """`update` and `adam` in one pass.

    A gradient or second moment with count 0 is none: then the ADAM record is all NaN.
    """
    return _kernel.step(
        before,
        after,
        grads,
        second_moments,
        per_tensor(correction, before, np.float64),
        per_tensor(eps, before, np.float64),
    )


def sketch(
    batch: Batch, seeds: ArrayLike, offsets: ArrayLike, wholes: ArrayLike | None = None
) -> NDArray[np.float32]:
    """32 signed sums per tensor whose inner products estimate those of the tensors.

    `offsets` are the flat indices of the first elements in the whole tensor, `wholes` the whole
    tensors' sizes (without: the counts): shards add up. Of a whole of more than 65,536 elements one
    eighth is read: of every 256 elements 32 neighbours, chosen by the seed.
    """
    return _kernel.sketch(batch, *_places(batch, seeds, offsets, wholes))


def _places(
    batch: Batch, seeds: ArrayLike, offsets: ArrayLike, wholes: ArrayLike | None
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    return (
        per_tensor(seeds, batch, np.uint64),
        per_tensor(offsets, batch, np.int64),
        per_tensor(batch.counts if wholes is None else wholes, batch, np.int64),
    )


def hashes(batch: Batch, offsets: ArrayLike) -> NDArray[np.uint64]:
    """A 64-bit mark of the bits of every tensor; the marks of shards add up modulo 2^64."""
    return _kernel.hashes(batch, per_tensor(offsets, batch, np.int64))


def count_cells(batch: Batch, exponents: ArrayLike, firsts: ArrayLike, *, cells: int) -> Cells:
    """Exact counts on one uniform grid per tensor: `cells` (at most 256) cells of 2^exponent.

    The first begins at first · 2^exponent; `firsts` are whole numbers.
    """
    return _kernel.count_cells(
        batch,
        per_tensor(exponents, batch, np.int64),
        per_tensor(firsts, batch, np.float64),
        cells,
    )


def list_beyond(batch: Batch, lows: ArrayLike, highs: ArrayLike, *, most: int) -> Beyond:
    """The finite elements x ≤ low or x ≥ high of every tensor: how many, where the first `most`."""
    return _kernel.list_beyond(
        batch,
        per_tensor(lows, batch, np.float64),
        per_tensor(highs, batch, np.float64),
        most,
    )


def copy(source: Batch, target: Batch) -> None:
    """Copy every tensor's bytes into memory of the same size and type."""
    _kernel.copy(source, target)


def read(batch: Batch) -> float:
    """Read every byte once and do next to nothing: the floor the benchmark compares with."""
    return _kernel.read(batch)


def row_spread(batch: Batch) -> NDArray[np.float32]:
    """How far up to 16 fixed rows lie from row 0, relative to the largest row norm among them."""
    return _kernel.row_spread(batch)


def measure_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[np.void]:
    """The records (MOMENTS) of numpy arrays of any type and memory order."""
    batch, owners = batch_of(arrays)
    records = measure(batch)
    del owners  # they had to live until here
    return records
