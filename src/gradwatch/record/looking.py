"""Looking at tensors of the user's without a wait, or a trace in autograd or in a dispatch mode.

Memory of the CPU is read by the kernel. What is on an accelerator is looked at elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch
from gradwatch.record.guard import capturing
from gradwatch.record.tensors import KERNEL_DTYPES, is_dense, on_accelerator

PROBED = 4096
_LARGE, _PROBED_OF_LARGE = 1 << 16, 1024
"""Beyond a cache's size every element looked at is a wait for memory: fewer are then enough."""
_DEPTH = 4
PLAIN: tuple[type[Tensor], ...] = (Tensor, torch.nn.Parameter)
"""Subclasses are not looked at: any operation on one may run code of its author."""
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    """The tensors in arguments or an output: tuples, lists, dicts, mappings, dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        value = value.values()
    elif is_dataclass(value):
        value = getattr(value, "__dict__", {}).values()
    elif not isinstance(value, (tuple, list)):
        return
    if depth:
        for item in value:
            yield from tensors_in(item, depth - 1)


def first_floating(value: Any) -> Tensor | None:
    """The first tensor of floating point numbers, which is what a layer's output is taken to be."""
    return next((tensor for tensor in tensors_in(value) if tensor.is_floating_point()), None)


def stored(tensor: Tensor) -> Tensor:
    """What a sparse tensor keeps, without its zeros; any other tensor as it is."""
    if type(tensor) not in PLAIN or tensor.layout not in _SPARSE:
        return tensor
    plain = tensor.detach()
    return plain._values() if plain.layout is torch.sparse_coo else plain.values()


def readable(tensor: Tensor) -> bool:
    """Whether the numbers lie in memory we can read: an ordinary dense tensor on the CPU."""
    return tensor.is_cpu and _is_ordinary(tensor)


def device_readable(tensor: Tensor) -> bool:
    """Whether it is an ordinary dense tensor of a device, on which operations may be launched.

    While a CUDA graph is captured they may not: they would become part of the graph.
    """
    return (
        on_accelerator(tensor) and _is_ordinary(tensor) and bool(tensor.numel()) and not capturing()
    )


def _is_ordinary(tensor: Tensor) -> bool:
    plain, strided = type(tensor) in PLAIN, tensor.layout is torch.strided
    return plain and strided and tensor.dtype in KERNEL_DTYPES


def moments(tensor: Tensor) -> NDArray[np.void]:
    """The kernel's record of a readable tensor, as an array of one."""
    flat = in_one_piece(tensor)
    pointer = flat.data_ptr() if flat.numel() else 0
    return kernel.measure(Batch.of([pointer], [flat.numel()], [KERNEL_DTYPES[flat.dtype]])).records


def nonfinite(tensor: Tensor, *, whole: bool = False) -> int:
    """How many of at most 4,096 evenly spread elements (`whole`: of all) are NaN or infinite."""
    size = tensor.numel()
    stride = 1 if whole or size <= PROBED else stride_of(size)
    flat = in_one_piece(tensor)  # named, so that a copy's memory lives through the call
    address = flat.data_ptr()  # 0 where there is no element, or where the storage was freed
    return kernel.nonfinite(address, size, KERNEL_DTYPES[flat.dtype], stride) if address else 0


def stride_of(size: int) -> int:
    """From one element to the next of a large tensor of which 4,096 or fewer are looked at."""
    # An odd stride meets every column of a matrix whose width is even.
    return -(-size // (PROBED if size <= _LARGE else _PROBED_OF_LARGE)) | 1


def in_one_piece(tensor: Tensor) -> Tensor:
    """The tensor itself where its memory has no gaps, else a copy."""
    if tensor.is_contiguous() or is_dense(tuple(tensor.shape), tensor.stride()):
        return tensor
    return tensor.detach().contiguous()
