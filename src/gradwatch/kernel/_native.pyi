"""The C kernel. Arrays are numpy's; batches are (pointers u8, counts i8, dtypes u1, rows i8)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Batch = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]
_Sketches = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
"""Seeds, offsets in the wholes, sizes of the wholes, and what is filled."""
_RowMemory = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint8]]
"""How many rows each tensor has; of each row whether touched now, in the window, and ever."""

def measure(
    batch: _Batch,
    records: NDArray[np.void],
    touched: Sequence[NDArray[np.uint8] | None] | None,
    bins: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]] | None,
    sketches: _Sketches | None,
    /,
) -> None: ...
def step(
    before: _Batch | None,
    after: _Batch | None,
    grads: _Batch | None,
    second_moments: _Batch | None,
    correction: NDArray[np.float64] | None,
    eps: NDArray[np.float64] | None,
    updates: NDArray[np.void] | None,
    ratios: NDArray[np.void] | None,
    /,
) -> None: ...
def fill_rows(
    rows: NDArray[np.void],
    empty: NDArray[np.void],
    has_value: NDArray[np.bool_],
    records: NDArray[np.void],
    states: NDArray[np.uint8],
    factor: float,
    memory: _RowMemory | None,
    sketches: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], bool] | None,
    /,
) -> int: ...
def gather(
    tensors: list[Any], types: tuple[type, type], dtypes: tuple[object, ...], batch: _Batch, /
) -> list[int]: ...
def sample(
    tensor: object, types: tuple[type, type], dtypes: tuple[object, ...], most: int, /
) -> bytes | None: ...
def use_exchange(capsule: object, /) -> bool: ...
def sketch(batch: _Batch, sketches: _Sketches, /) -> None: ...
def hashes(batch: _Batch, offsets: NDArray[np.int64], marks: NDArray[np.uint64], /) -> None: ...
def row_spread(batch: _Batch, spreads: NDArray[np.float32], /) -> None: ...
def count_cells(
    batch: _Batch,
    grids: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.uint64], NDArray[np.uint64]],
    cells: int,
    /,
) -> None: ...
def list_beyond(
    batch: _Batch,
    limits: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64], NDArray[np.int64]],
    most: int,
    /,
) -> None: ...
def copy(source: _Batch, target: _Batch, /) -> None: ...
def read(batch: _Batch, /) -> float: ...
def nonfinite(pointer: int, count: int, dtype: int, stride: int, /) -> int: ...
def set_threads(most: int, /) -> None: ...
def instruction_sets() -> list[str]: ...
def select(name: str, /) -> None: ...
