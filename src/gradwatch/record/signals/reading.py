"""Looking at a tensor without leaving a trace in autograd or in a dispatch mode."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwatch.kernel import Batch, Dtype, measure

PROBED = 4096
_LARGE, _PROBED_OF_LARGE = 1 << 16, 1024
"""Beyond a cache's size every element looked at is a wait for memory: fewer are then enough."""
_CHUNKS = 4
_KERNEL_DTYPES = {
    torch.float32: Dtype.F32,
    torch.float64: Dtype.F64,
    torch.bfloat16: Dtype.BF16,
    torch.float16: Dtype.F16,
}
_EXPONENT = {torch.bfloat16: np.int16(0x7F80), torch.float16: np.int16(0x7C00)}
_TINY: dict[Any, NDArray[Any]] = {
    np.dtype(np.float32): np.full(PROBED, 1e-30, np.float32),
    np.dtype(np.float64): np.full(PROBED, 1e-30, np.float64),
}


def readable(tensor: torch.Tensor) -> bool:
    """Whether the numbers lie in memory we can read: an ordinary dense tensor on the CPU."""
    return (
        tensor.is_cpu
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype in _KERNEL_DTYPES
    )


def moments(tensor: torch.Tensor) -> NDArray[np.void]:
    """The kernel's record of a readable tensor, as an array of one."""
    flat = tensor.detach()
    if not _dense(flat):
        flat = flat.contiguous()
    pointer = flat.data_ptr() if flat.numel() else 0
    return measure(Batch.of([pointer], [flat.numel()], [_KERNEL_DTYPES[flat.dtype]]))


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def numbers(tensor: torch.Tensor) -> NDArray[Any]:
    """A flat view in memory order where there is one. Half precision comes as its bits (int16)."""
    plain = tensor.detach()
    if plain.dtype in _EXPONENT:
        plain = plain.view(torch.int16)
    array: NDArray[Any] = plain.numpy()
    return array.ravel(order="K")


def nonfinite(tensor: torch.Tensor, *, whole: bool = False) -> int:
    """How many of at most 4,096 evenly spread elements (`whole`: of all) are NaN or infinite."""
    array = numbers(tensor)
    size = array.size
    if not whole and size > PROBED:
        wanted = PROBED if size <= _LARGE else _PROBED_OF_LARGE
        # An odd stride meets every column of a matrix whose width is even.
        array = array[:: -(-size // wanted) | 1]
    tiny = _TINY.get(array.dtype)
    if tiny is not None and array.size <= PROBED and _all_finite(array, tiny[: array.size]):
        return 0
    return int(np.count_nonzero(_bad(array, tensor.dtype)))


def _all_finite(array: NDArray[Any], tiny: NDArray[Any]) -> bool:
    """One product tells healthy tensors: shrunk as they are no sum of finite ones overflows."""
    with np.errstate(invalid="ignore", over="ignore"):  # NaN here is news for us, not for the user
        return math.isfinite(np.dot(array, tiny))


def _bad(array: NDArray[Any], dtype: torch.dtype) -> NDArray[np.bool_]:
    exponent = _EXPONENT.get(dtype)
    if exponent is not None:
        return np.asarray((array & exponent) == exponent)
    return np.asarray(~np.isfinite(array))


def spread(tensor: torch.Tensor) -> NDArray[Any]:
    """The whole of a small tensor, or four stretches of 4,096 numbers of a large one, as floats."""
    array = numbers(tensor)
    size = array.size
    if size > _CHUNKS * PROBED:
        starts = [(size - PROBED) * index // (_CHUNKS - 1) for index in range(_CHUNKS)]
        array = np.concatenate([array[start : start + PROBED] for start in starts])
    if tensor.dtype is torch.bfloat16:
        return (array.astype(np.int32) << 16).view(np.float32)
    if tensor.dtype is torch.float16:
        return array.view(np.float16).astype(np.float32)
    return array
