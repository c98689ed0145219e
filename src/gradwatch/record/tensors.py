"""Torch tensors as the kernel wants them: which can be read, where they lie, in which order.

The one place that knows the dtypes the kernel reads, what counts as an accelerator, and when memory
is dense.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

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


@dataclass(frozen=True)
class Gathered:
    """A batch, why an entry of it is empty, and the tensors that own its memory."""

    batch: Batch
    states: NDArray[np.uint8]
    tensors: list[Tensor | None]


def gather(tensors: Sequence[Tensor | None], room: Batch | None = None) -> Gathered:
    """Addresses of the tensors; an entry that cannot be read is empty and its state says why.

    A stale address would be a crash in somebody's training, so device, layout, type and the size of
    the storage are looked at every time. Hold the result while the kernel runs. It fills `room`
    where it is given one: a batch of that many tensors, of which nothing else is needed any more.
    """
    batch = Batch.empty(len(tensors)) if room is None else room
    states = np.zeros(len(tensors), np.uint8)
    kept = list(tensors)
    if kernel.gather is None:
        others: Iterable[int] = range(len(kept))
    else:
        others = kernel.gather(kept, PLAIN, DTYPES, batch.arrays)
    for index in others:
        tensor = kept[index]
        kept[index] = None
        batch.pointers[index] = batch.counts[index] = batch.rows[index] = 0
        if tensor is None:
            states[index] = State.NO_GRADIENT
        elif (readable := readable_here(tensor)) is None:
            states[index] = State.UNSUPPORTED
        else:
            kept[index] = readable
            _enter(batch, index, readable)
    return Gathered(batch, states, kept)


def _enter(batch: Batch, index: int, tensor: Tensor) -> None:
    size = tensor.numel()
    batch.pointers[index], batch.counts[index] = tensor.data_ptr(), size
    batch.dtypes[index] = KERNEL_DTYPES[tensor.dtype]
    batch.rows[index] = tensor.shape[0] if size and tensor.dim() > 1 else 0


def only(batch: Batch, keep: NDArray[np.bool_]) -> Batch:
    """The batch with every other entry empty."""
    if keep.all():
        return batch
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


def readable_here(tensor: Tensor) -> Tensor | None:
    """The same numbers in memory that the kernel can read; None where there is none."""
    tensor = local(tensor).detach()
    if tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_nested:
        return None
    if tensor.layout is not torch.strided:
        if tensor.numel() > DENSE_LIMIT:
            return None
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype not in KERNEL_DTYPES:
        return None
    if not _has_memory(tensor):
        return None
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if rows_lie_whole(tuple(tensor.shape), tensor.stride()):
        return tensor
    return tensor.contiguous()


def _has_memory(tensor: Tensor) -> bool:
    """Not freed, not cut off, and real: otherwise even a copy would read what is not there."""
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + reach + 1) * tensor.itemsize
    return not tensor.numel() or (
        bool(tensor.data_ptr()) and tensor.untyped_storage().nbytes() >= end
    )


@lru_cache(maxsize=4096)
def rows_lie_whole(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Dense memory in which dimension 0 is outermost (channels-last, say): no copy is needed."""
    if not shape or 0 in shape:
        return True
    if not is_dense(shape, strides):
        return False
    return shape[0] == 1 or strides[0] == prod(shape[1:])


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
    replica = 0
    coordinate = mesh.get_coordinate() or [0] * mesh.ndim
    for dim, placed in enumerate(placements):
        if placed.is_replicate():
            replica = replica * mesh.size(dim) + coordinate[dim]
    return Placement(tuple(tensor.shape), tuple(offset), tuple(shape), replica)


def flat_offset(place: Placement | None) -> int:
    """Flat index of the piece's first element in the whole, right for pieces cut along dim 0."""
    if place is None or not place.offset:
        return 0
    inner = 1
    for size in place.global_shape[1:]:
        inner *= size
    return place.offset[0] * inner


# -- single numbers ----------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Whether this is a single number; a tensor is not read, it may be on an accelerator."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    if isinstance(value, str | bytes):
        return False
    try:
        float(value)
    except Exception:
        return False
    return True


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


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A CPU tensor as a numpy array (a copy in float32 where numpy has no such type)."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


def spread(tensor: Tensor, most: int) -> Tensor:
    """At most `most` evenly spread elements, in memory order: a view where memory has no gaps."""
    plain = local(tensor).detach()
    size = plain.numel()
    # An odd stride meets every column of a matrix whose width is even.
    stride = 1 if size <= most else -(-size // most) | 1
    if plain.is_contiguous() or is_dense(tuple(plain.shape), plain.stride()):
        return plain.as_strided((-(-size // stride),), (stride,), plain.storage_offset())
    return plain.reshape(-1)[::stride]
