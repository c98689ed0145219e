"""The tensors of a step as the kernel wants them: addresses, checked anew on every call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from gradwatch.kernel import Batch, Dtype
from gradwatch.record.placement import local
from gradwatch.stats import State

KINDS = {
    torch.float32: int(Dtype.F32),
    torch.float64: int(Dtype.F64),
    torch.bfloat16: int(Dtype.BF16),
    torch.float16: int(Dtype.F16),
}
DENSE_LIMIT = 1 << 22
"""Sparse gradients of at most this many elements are made dense to be measured."""

_PLAIN = (Tensor, Parameter)


@dataclass(frozen=True)
class Gathered:
    """A batch, why an entry of it is empty, and the tensors that own its memory."""

    batch: Batch
    states: NDArray[np.uint8]
    tensors: list[Tensor | None]


def gather(tensors: Sequence[Tensor | None]) -> Gathered:
    """Addresses of the tensors; an entry that cannot be read is empty and its state says why.

    A stale address would be a crash in somebody's training, so device, layout, type and the size of
    the storage are looked at every time. Hold the result while the kernel runs.
    """
    count = len(tensors)
    pointers, counts, kinds, rows = [0] * count, [0] * count, [0] * count, [0] * count
    states = np.zeros(count, np.uint8)
    kept: list[Tensor | None] = [None] * count
    for index, tensor in enumerate(tensors):
        if tensor is None:
            states[index] = State.NO_GRADIENT
            continue
        if not _is_simple(tensor):
            readable = _readable(tensor)
            if readable is None:
                states[index] = State.UNSUPPORTED
                continue
            tensor = readable
        size = tensor.numel()
        end = (tensor.storage_offset() + size) * tensor.itemsize
        address = tensor.data_ptr()
        if size and (not address or tensor.untyped_storage().nbytes() < end):
            states[index] = State.UNSUPPORTED  # freed or not real: there is no memory to read
            continue
        pointers[index], counts[index], kinds[index] = address, size, KINDS[tensor.dtype]
        if size and tensor.dim() > 1:
            rows[index] = tensor.shape[0]
        kept[index] = tensor
    return Gathered(Batch.of(pointers, counts, kinds, rows), states, kept)


def only(batch: Batch, keep: NDArray[np.bool_]) -> Batch:
    """The batch with every other entry empty, and without rows."""
    return Batch(
        np.where(keep, batch.pointers, 0),
        np.where(keep, batch.counts, 0),
        batch.dtypes,
        np.zeros_like(batch.rows),
    )


def aligned(tensor: Tensor | None, like: Tensor) -> Tensor | None:
    """The tensor in the memory order of `like`, so that the two can be compared word by word."""
    if tensor is None or tensor.layout is not torch.strided or like.layout is not torch.strided:
        return tensor
    tensor, like = local(tensor), local(like)
    if tensor.stride() == like.stride() or tensor.shape != like.shape:
        return tensor
    fitting = torch.empty_strided(
        like.size(), like.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return fitting.copy_(tensor.detach())


def _is_simple(tensor: Tensor) -> bool:
    """Whether the memory can be read as it lies: the ordinary case, so it is asked first."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dtype in KINDS
        and tensor.is_contiguous()
    )


def _readable(tensor: Tensor) -> Tensor | None:
    """The same numbers in memory the kernel can read, or None."""
    tensor = local(tensor).detach()
    if tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_nested:
        return None
    if tensor.layout is not torch.strided:
        if tensor.numel() > DENSE_LIMIT:
            return None
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype not in KINDS:
        return None
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if rows_lie_whole(tuple(tensor.shape), tensor.stride()):
        return tensor
    return tensor.contiguous()


@cache
def rows_lie_whole(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Dense memory in which dimension 0 is outermost (channels-last, say): no copy is needed."""
    if not shape or 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return shape[0] == 1 or strides[0] == expected // shape[0]
