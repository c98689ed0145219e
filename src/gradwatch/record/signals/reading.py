"""Looking at a tensor without leaving a trace in autograd or in a dispatch mode."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch, Dtype

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
    flat = _in_one_piece(tensor)
    pointer = flat.data_ptr() if flat.numel() else 0
    return kernel.measure(Batch.of([pointer], [flat.numel()], [_KERNEL_DTYPES[flat.dtype]])).records


def _in_one_piece(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its memory has no gaps, else a copy."""
    return tensor if dense(tensor) else tensor.detach().contiguous()


def dense(tensor: torch.Tensor) -> bool:
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
    size = tensor.numel()
    stride = 1
    if not whole and size > PROBED:
        wanted = PROBED if size <= _LARGE else _PROBED_OF_LARGE
        # An odd stride meets every column of a matrix whose width is even.
        stride = -(-size // wanted) | 1
    if tensor.is_contiguous() and (address := tensor.data_ptr()):
        # By address, since this runs between the layers: two views would cost more than the look.
        return kernel.nonfinite(address, size, _KERNEL_DTYPES[tensor.dtype], stride)
    return int(np.count_nonzero(_bad(numbers(tensor)[::stride], tensor.dtype)))


def _bad(array: NDArray[Any], dtype: torch.dtype) -> NDArray[np.bool_]:
    exponent = _EXPONENT.get(dtype)
    if exponent is not None:
        return np.asarray((array & exponent) == exponent)
    return np.asarray(~np.isfinite(array))


def sampled_moments(tensor: torch.Tensor) -> NDArray[np.void]:
    """Records of the whole of a small tensor, or of four stretches of 4,096 of a large one."""
    flat = _in_one_piece(tensor)
    size, kind = flat.numel(), _KERNEL_DTYPES[flat.dtype]
    address = flat.data_ptr()
    if size <= _CHUNKS * PROBED:
        return kernel.measure(Batch.of([address], [size], [kind])).records
    last = size - PROBED
    starts = [address + last * index // (_CHUNKS - 1) * flat.itemsize for index in range(_CHUNKS)]
    return kernel.measure(Batch.of(starts, [PROBED] * _CHUNKS, [kind] * _CHUNKS)).records
