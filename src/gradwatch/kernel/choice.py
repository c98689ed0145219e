"""Which of the two kernels, and which instruction set, answers."""

import os
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import plain
from gradwatch.kernel.batch import Batch, Beyond, Bins, Cells

VARIABLE = "GRADWATCH_KERNEL"
NONE = "none"
MOST_THREADS = 64

_Touched = Sequence[NDArray[np.uint8] | None] | None
_Records = NDArray[np.void]


class Kernel(Protocol):
    """What the C and the numpy module both offer; each refuses wrong batches by itself."""

    def measure(self, batch: Batch, touched: _Touched = None) -> _Records: ...

    def measure_with_sketches(
        self,
        batch: Batch,
        seeds: NDArray[np.uint64],
        offsets: NDArray[np.int64],
        wholes: NDArray[np.int64],
        touched: _Touched = None,
    ) -> tuple[_Records, NDArray[np.float32]]: ...

    def measure_all(
        self,
        batch: Batch,
        seeds: NDArray[np.uint64],
        offsets: NDArray[np.int64],
        wholes: NDArray[np.int64],
        touched: _Touched = None,
    ) -> tuple[_Records, list[Bins], NDArray[np.float32]]: ...

    def measure_with_histograms(
        self, batch: Batch, touched: _Touched = None
    ) -> tuple[_Records, list[Bins]]: ...

    def update(self, before: Batch, after: Batch, grads: Batch | None) -> _Records: ...

    def adam(
        self,
        grads: Batch,
        second_moments: Batch,
        correction: NDArray[np.float64],
        eps: NDArray[np.float64],
    ) -> _Records: ...

    def step(
        self,
        before: Batch,
        after: Batch,
        grads: Batch,
        second_moments: Batch,
        correction: NDArray[np.float64],
        eps: NDArray[np.float64],
    ) -> tuple[_Records, _Records]: ...

    def sketch(
        self,
        batch: Batch,
        seeds: NDArray[np.uint64],
        offsets: NDArray[np.int64],
        wholes: NDArray[np.int64],
    ) -> NDArray[np.float32]: ...

    def hashes(self, batch: Batch, offsets: NDArray[np.int64]) -> NDArray[np.uint64]: ...

    def copy(self, source: Batch, target: Batch) -> None: ...

    def read(self, batch: Batch) -> float: ...

    def nonfinite(self, pointer: int, count: int, dtype: int, stride: int, /) -> int: ...

    def row_spread(self, batch: Batch) -> NDArray[np.float32]: ...

    def count_cells(
        self,
        batch: Batch,
        exponents: NDArray[np.int64],
        firsts: NDArray[np.float64],
        cells: int,
    ) -> Cells: ...

    def list_beyond(
        self, batch: Batch, lows: NDArray[np.float64], highs: NDArray[np.float64], most: int
    ) -> Beyond: ...


def available() -> tuple[str, ...]:
    """The instruction sets of this machine and build, the best first; "none" (numpy) always."""
    return (*_native_sets(), NONE)


@cache
def _native_sets() -> tuple[str, ...]:
    """What the extension offers; nothing where it was not built for this Python and machine."""
    try:
        from gradwatch.kernel import _native
    except ImportError:
        return ()
    return tuple(_native.instruction_sets())


def set_threads(most: int) -> None:
    """For the compiled kernel; numpy's works in the calling thread."""
    if most < 1:
        raise ValueError(f"expected at least one thread, got {most}")
    if _native_sets():
        from gradwatch.kernel import _native

        _native.set_threads(min(most, MOST_THREADS))


def first() -> str:
    """What the environment asks for, or the best there is."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return available()[0]
    if wanted not in available():
        raise ValueError(
            f"{VARIABLE} is {wanted!r}; on this machine it can be {', '.join(available())}."
        )
    return wanted


def module(name: str) -> Kernel:
    """The module that answers for an instruction set."""
    if name not in available():
        raise ValueError(f"{name!r} is none of {', '.join(available())}")
    if name == NONE:
        return plain
    from gradwatch.kernel import _native, compiled

    _native.select(name)
    return compiled
