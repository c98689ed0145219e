"""Looking at tensors without a wait, or a trace in autograd or in a dispatch mode.

Memory of the CPU is read by the kernel; what is on an accelerator is looked at by operations of the
device, whose results are fetched later.
"""

import ctypes
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch
from gradwatch.record.device.choice import trusted_engine
from gradwatch.record.device.torch_engine import output_sums
from gradwatch.record.guard import capturing
from gradwatch.record.tensors import KERNEL_DTYPES, is_dense, on_accelerator

PROBED = 4096
_LARGE, _PROBED_OF_LARGE = 1 << 16, 1024
"""Beyond a cache's size every element looked at is a wait for memory: fewer are then enough."""
_STRETCHES = 4
_DEPTH = 4
PLAIN: tuple[type[Tensor], ...] = (Tensor, torch.nn.Parameter)
"""Subclasses are not looked at: any operation on one may run code of its author."""


def observable() -> bool:
    """Whether an eager forward is running whose tensors hold real numbers.

    Under a transform, a trace or a dispatch mode a look at a tensor would become part of the
    computation: selective checkpointing, for one, counts every operation it sees.
    """
    return not (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
    )


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors in arguments or an output: tuples, lists, dicts, mappings, dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and is_dataclass(value):
        for item in vars(value).values():
            yield from tensors_in(item, depth - 1)


def first_floating(value: Any) -> Tensor | None:
    """The first tensor of floating point numbers, which is what a layer's output is taken to be."""
    return next((tensor for tensor in tensors_in(value) if tensor.is_floating_point()), None)


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def stored(tensor: Tensor) -> Tensor:
    """What a sparse tensor keeps, without its zeros; any other tensor as it is."""
    if type(tensor) not in PLAIN or tensor.layout not in _SPARSE:
        return tensor
    plain = tensor.detach()
    return plain._values() if plain.layout is torch.sparse_coo else plain.values()


# -- on the CPU ----------------------------------------------------------------------------------


def readable(tensor: Tensor) -> bool:
    """Whether the numbers lie in memory we can read: an ordinary dense tensor on the CPU."""
    return (
        tensor.is_cpu
        and type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and tensor.dtype in KERNEL_DTYPES
    )


def moments(tensor: Tensor) -> NDArray[np.void]:
    """The kernel's record of a readable tensor, as an array of one."""
    flat = _in_one_piece(tensor)
    pointer = flat.data_ptr() if flat.numel() else 0
    return kernel.measure(Batch.of([pointer], [flat.numel()], [KERNEL_DTYPES[flat.dtype]])).records


def sampled_moments(tensor: Tensor) -> NDArray[np.void]:
    """Records of the whole of a small tensor, or of four stretches of 4,096 of a large one."""
    flat = _in_one_piece(tensor)
    size, kind = flat.numel(), KERNEL_DTYPES[flat.dtype]
    address = flat.data_ptr()
    if size <= _STRETCHES * PROBED:
        return kernel.measure(Batch.of([address], [size], [kind])).records
    last = size - PROBED
    starts = [
        address + last * index // (_STRETCHES - 1) * flat.itemsize for index in range(_STRETCHES)
    ]
    return kernel.measure(Batch.of(starts, [PROBED] * _STRETCHES, [kind] * _STRETCHES)).records


def nonfinite(tensor: Tensor, *, whole: bool = False) -> int:
    """How many of at most 4,096 evenly spread elements (`whole`: of all) are NaN or infinite."""
    size = tensor.numel()
    stride = 1
    if not whole and size > PROBED:
        wanted = PROBED if size <= _LARGE else _PROBED_OF_LARGE
        # An odd stride meets every column of a matrix whose width is even.
        stride = -(-size // wanted) | 1
    # By address, since this runs between the layers: two views would cost more than the look.
    if tensor.is_contiguous() and (address := tensor.data_ptr()):
        return kernel.nonfinite(address, size, KERNEL_DTYPES[tensor.dtype], stride)
    flat = _in_one_piece(tensor)  # named, so that a copy's memory lives through the call
    address = flat.data_ptr()  # 0 where there is no element, or where the storage was freed
    return kernel.nonfinite(address, size, KERNEL_DTYPES[flat.dtype], stride) if address else 0


_PIECES, _PIECE = 16, 256
_LEAST_SEEN = 64
"""Bytes other than zero that tell one batch from another."""


def fingerprint(tensor: Tensor, before: int = 0) -> int | None:
    """32 bits of shape, type and at most 4,096 bytes of a tensor, chained to those before.

    None where its memory is not ours to read, and where next to nothing was seen of it but zeros:
    two batches of words, one-hot, look alike then. Whatever its numbers are, only their bits count.
    """
    if not tensor.is_cpu or type(tensor) not in PLAIN:
        return None
    if tensor.layout is torch.sparse_coo:
        places = fingerprint(tensor.detach()._indices(), before)
        return None if places is None else fingerprint(stored(tensor), places)
    if tensor.layout is not torch.strided:
        return None
    if not _is_dense(tensor):
        tensor = _thinned(tensor.detach()).contiguous()
    before = zlib.crc32(f"{tuple(tensor.shape)}{tensor.dtype}".encode(), before)
    size, address = tensor.numel() * tensor.itemsize, tensor.data_ptr()
    if not address or not size:
        return before
    memory = (ctypes.c_char * size).from_address(address)
    seen = np.frombuffer(memoryview(memory).cast("B"), np.uint8)
    if size > _PIECES * _PIECE:
        width = size // _PIECES
        # Not at the beginning, which images often leave empty.
        start = int(0.618 * (width - _PIECE))
        seen = seen[: _PIECES * width].reshape(_PIECES, width)[:, start : start + _PIECE]
        if np.count_nonzero(seen) < _LEAST_SEEN:
            return None
    return zlib.crc32(seen.tobytes(), before)


def _thinned(tensor: Tensor) -> Tensor:
    """A view with so few elements that a copy costs little."""
    for dim, size in enumerate(tensor.shape):
        if tensor.numel() > _LARGE and size > _PIECES:
            tensor = tensor[(*[slice(None)] * dim, slice(None, None, -(-size // _PIECES)))]
    return tensor


def _in_one_piece(tensor: Tensor) -> Tensor:
    """The tensor itself where its memory has no gaps, else a copy."""
    return tensor if _is_dense(tensor) else tensor.detach().contiguous()


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order."""
    return tensor.is_contiguous() or is_dense(tuple(tensor.shape), tensor.stride())


# -- on an accelerator ---------------------------------------------------------------------------


def device_readable(tensor: Tensor) -> bool:
    """Whether this is an ordinary dense tensor of a device, in a forward that really computes.

    While a CUDA graph is captured it does not: our operations would become part of the graph.
    """
    return (
        on_accelerator(tensor)
        and type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and tensor.dtype in KERNEL_DTYPES
        and tensor.numel() > 0
        and observable()
        and not capturing()
    )


OUTPUT_LAUNCHES = 11
"""Operations that `look_at_output` takes at most."""


def look_at_output(tensor: Tensor, most: int) -> tuple[int, Tensor]:
    """How many elements of a layer's output were seen, and what an engine made of them.

    Triton reads it whole, in one launch; torch's operations need memory of the device for what
    they make, so that `most` evenly spread elements are enough.
    """
    engine = trusted_engine(tensor.device, tensor.dtype)
    if engine is not None and _is_dense(tensor):
        return tensor.numel(), engine.output(tensor.detach())
    seen = spread(tensor, most)
    return seen.numel(), output_sums(seen)


def spread(tensor: Tensor, most: int) -> Tensor:
    """At most `most` evenly spread elements, in memory order: a view where memory has no gaps."""
    plain = tensor.detach()
    size = plain.numel()
    # An odd stride meets every column of a matrix whose width is even.
    stride = 1 if size <= most else -(-size // most) | 1
    if _is_dense(plain):
        return plain.as_strided((-(-size // stride),), (stride,), plain.storage_offset())
    return plain.reshape(-1)[::stride]
