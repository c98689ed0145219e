"""Tensors on an accelerator: looked at by operations of the device, and never waited for."""

import torch
from torch import Tensor

from gradwatch.record.signals.hooks import observable
from gradwatch.record.signals.reading import dense
from gradwatch.record.tracks import KINDS

_PLAIN = (Tensor, torch.nn.Parameter)


def on_accelerator(tensor: Tensor) -> bool:
    return not tensor.is_cpu and not tensor.is_meta


def is_far(tensor: Tensor) -> bool:
    """Whether this is an ordinary dense tensor of a device, in a forward that really computes.

    While a CUDA graph is captured it does not: our operations would become part of the graph.
    """
    return (
        on_accelerator(tensor)
        and type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.dtype in KINDS
        and tensor.numel() > 0
        and observable()
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def spread(tensor: Tensor, most: int) -> Tensor:
    """At most `most` evenly spread elements, in memory order: a view where memory has no gaps."""
    plain = tensor.detach()
    size = plain.numel()
    # An odd stride meets every column of a matrix whose width is even.
    stride = 1 if size <= most else -(-size // most) | 1
    if dense(plain):
        return plain.as_strided((-(-size // stride),), (stride,), plain.storage_offset())
    return plain.reshape(-1)[::stride]
