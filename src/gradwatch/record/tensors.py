"""Torch tensors as the kernel wants them: which can be read, where they lie, in which order.

The one place that knows the dtypes the kernel reads, what counts as an accelerator, and when memory
is dense.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch, Dtype
from gradwatch.run import Placement
from gradwatch.stats import State

KERNEL_DTYPES = {
    torch.float32: int(Dtype.F32),
    torch.float64: int(Dtype.F64),
    torch.bfloat16: int(Dtype.BF16),
    torch.float16: int(Dtype.F16),
}
DENSE_LIMIT = 1 << 22
"""Sparse gradients of at most this many elements are made dense to be measured."""

DTYPES = tuple(KERNEL_DTYPES)
"""In the order of the kernel's own."""
PLAIN = (Tensor, Parameter)
kernel.use_exchange(getattr(Tensor, "__dlpack_c_exchange_api__", None))  # of torch 2.10 and later


def on_accelerator(value: object) -> bool:
    """Whether this is a tensor whose numbers are in the memory of a device, not of this process."""
    return isinstance(value, Tensor) and not value.is_cpu and not value.is_meta


Tensors = Sequence[Tensor | None]


class Gathered(NamedTuple):
    """A batch, why an entry of it is empty, and the tensors that own its memory."""

    batch: Batch
    states: NDArray[np.uint8]
    tensors: list[Tensor | None]


def gather(tensors: Tensors, like: Tensors | None = None, most: int | None = None) -> Gathered:
    """Addresses of the tensors; an entry that cannot be read is empty and its state says why.

    With `like` each in the memory order of another, with `most` only so many spread elements.
    A stale address would be a crash in somebody's training, so device, layout, type and the size of
    the storage are looked at every time. Hold the result while the kernel runs.
    """
    batch, kept = Batch.empty(len(tensors)), list(tensors)
    if like is not None:
        kept = [aligned(t, x) for t, x in zip(tensors, like, strict=True)]
    states = np.zeros(len(kept), np.uint8)
    look = kernel.gather
    others = range(len(kept)) if look is None else look(kept, PLAIN, DTYPES, batch.arrays)
    for index in others:
        tensor = kept[index]
        kept[index] = readable = None if tensor is None else readable_here(tensor)
        if readable is None:
            states[index] = State.NO_GRADIENT if tensor is None else State.UNSUPPORTED
            continue
        size = readable.numel()
        batch.pointers[index], batch.counts[index] = readable.data_ptr(), size
        batch.dtypes[index] = KERNEL_DTYPES[readable.dtype]
        batch.rows[index] = readable.shape[0] if size and readable.dim() > 1 else 0
    if most is not None:
        batch, _, kept = gather([None if t is None else spread(t, most) for t in kept])
    return Gathered(batch, states, kept)


def aligned(tensor: Tensor | None, like: Tensor | None) -> Tensor | None:
    """The tensor in the memory order of `like`, so that the two can be compared word by word."""
    if tensor is None or like is None or tensor.dim() < 3:  # of a matrix the kernel knows one order
        return tensor
    tensor, like = local(tensor), local(like)
    if {tensor.layout, like.layout} != {torch.strided} or tensor.shape != like.shape:
        return tensor
    if tensor.stride() == like.stride():
        return tensor
    return tensor.new_empty_strided(like.shape, like.stride()).copy_(tensor.detach())


def readable_here(tensor: Tensor, *, anywhere: bool = False) -> Tensor | None:
    """The same numbers in memory that the kernel can read, or like that on a device; else None."""
    tensor = local(tensor).detach()
    if not (tensor.is_cpu or anywhere) or tensor.is_quantized or tensor.is_nested:
        return None
    if tensor.layout is not torch.strided:
        if anywhere or tensor.numel() > DENSE_LIMIT:
            return None
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype not in KERNEL_DTYPES or not _has_memory(tensor):
        return None
    tensor = tensor.resolve_neg()
    return tensor if rows_lie_whole(tuple(tensor.shape), tensor.stride()) else tensor.contiguous()


def _has_memory(tensor: Tensor) -> bool:
    """Not freed, not cut off, and real: otherwise even a copy would read what is not there."""
    if not tensor.numel():
        return True
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + reach + 1) * tensor.itemsize
    return tensor.data_ptr() != 0 and tensor.untyped_storage().nbytes() >= end


@lru_cache(maxsize=4096)
def rows_lie_whole(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Dense memory in which dimension 0 is outermost (channels-last, say): no copy is needed."""
    if not shape or 0 in shape:
        return True
    return is_dense(shape, strides) and (shape[0] == 1 or strides[0] == prod(shape[1:]))


@lru_cache(maxsize=4096)
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill one stretch of memory without gaps, in whatever order."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


# -- shards ------------------------------------------------------------------------------------


def local(tensor: Tensor) -> Tensor:
    """The memory of this rank: a sharded tensor's own piece, without any communication."""
    if type(tensor) in PLAIN:
        return tensor
    piece = getattr(tensor, "_local_tensor", None)
    return piece if isinstance(piece, Tensor) else tensor


def placement(tensor: Tensor) -> Placement | None:
    """Which piece of the whole this rank holds; None for an ordinary tensor."""
    if not isinstance(getattr(tensor, "_local_tensor", None), Tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    replica, coordinate = 0, mesh.get_coordinate() or [0] * mesh.ndim
    for dim, placed in enumerate(placements):
        if placed.is_replicate():
            replica = replica * mesh.size(dim) + coordinate[dim]
    return Placement(tuple(tensor.shape), tuple(offset), tuple(shape), replica)


def flat_offset(place: Placement | None) -> int:
    """Flat index of the piece's first element in the whole, right for pieces cut along dim 0."""
    if place is None or not place.offset:
        return 0
    return place.offset[0] * prod(place.global_shape[1:])


# -- single numbers ----------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Whether this is a single number; a tensor is not read, it may be on an accelerator."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    with suppress(Exception):
        return not isinstance(value, str | bytes) and isinstance(float(value), float)
    return False


def number(value: Any) -> float:
    """A Python number, numpy scalar or one-element CPU tensor as a float; NaN for anything else.

    On an accelerator `item()` would wait for it, so nothing is read from there.
    """
    try:
        if not isinstance(value, Tensor):
            return float(value)
        return float(local(value).item()) if value.is_cpu else float("nan")
    except (TypeError, ValueError, RuntimeError):  # no number, or more than one
        return float("nan")


def as_array(tensor: Tensor) -> NDArray[Any]:
    """What `readable_here` gave, in numpy (a copy in float32 where numpy has no such type)."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def spread(tensor: Tensor, most: int) -> Tensor:
    """At most `most` evenly spread elements, in memory order: a view where memory has no gaps."""
    plain = local(tensor).detach()
    size = plain.numel()
    # An odd stride meets every column of a matrix whose width is even.
    stride = 1 if size <= most else -(-size // most) | 1
    if plain.is_contiguous() or is_dense(tuple(plain.shape), plain.stride()):
        return plain.as_strided((-(-size // stride),), (stride,), plain.storage_offset())
    return plain.reshape(-1)[::stride]
