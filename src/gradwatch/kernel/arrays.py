"""The same statistics for numpy arrays of any type and memory order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import Batch, Dtype

_KINDS = {
    np.dtype(np.float32): Dtype.F32,
    np.dtype(np.float64): Dtype.F64,
    np.dtype(np.float16): Dtype.F16,
}


def batch_of(arrays: Sequence[NDArray[Any]]) -> tuple[Batch, list[NDArray[Any]]]:
    """A batch over the arrays, and the arrays that own its memory: keep them while it is used."""
    owners = [_readable(np.asarray(array)) for array in arrays]
    batch = Batch.of(
        [owner.ctypes.data if owner.size else 0 for owner in owners],
        [owner.size for owner in owners],
        [_KINDS[owner.dtype] for owner in owners],
        [owner.shape[0] if owner.ndim >= 2 else 0 for owner in owners],
    )
    return batch, owners


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order and in a type the kernel reads; integers and truth values as float64."""
    if array.dtype.kind == "c":
        # Real and imaginary parts are two elements, as torch's view_as_real has them.
        narrow = array.dtype == np.complex64
        pairs = np.ascontiguousarray(array, np.complex64 if narrow else np.complex128)
        array = pairs.view(np.float32 if narrow else np.float64)
    if array.dtype not in _KINDS:
        array = array.astype(np.float64)
    # Also to addresses that are multiples of the size: a view into a file may begin anywhere.
    return np.require(array, requirements=("C", "ALIGNED"))
