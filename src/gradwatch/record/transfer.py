"""Numbers on their way from a device to the host: copied when they are made, read once here."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Parts = list[NDArray[np.float64]]
"""The numbers of several tensors, one flat array each."""


class Transfer:
    """Several small tensors, copied to the host together; nobody waits for the copies.

    They may lie on several devices and have several types: of each device and type one joined
    copy is sent. What is on the CPU is copied at once.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        flat = [tensor.detach().reshape(-1) for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in flat]
        groups: dict[Any, list[int]] = {}
        for at, tensor in enumerate(flat):
            # Views with gaps are joined apart: beside them CUDA would join the others slower, too.
            key = tensor.device, tensor.dtype, tensor.is_contiguous()
            groups.setdefault(key, []).append(at)
        self._sent = [(some, *_send([flat[at] for at in some])) for some in groups.values()]

    @property
    def arrived(self) -> bool:
        """Whether all copies are done; asks the devices without waiting for them."""
        return all(event is None or event.query() for _, _, event in self._sent)

    def wait(self) -> None:
        """Block until everything is here; at the end of a run only."""
        for _, _, event in self._sent:
            if event is not None:
                event.synchronize()

    def parts(self) -> Parts:
        """The tensors' numbers, in the order they were given."""
        parts = [np.zeros(0)] * len(self._sizes)
        for some, host, _ in self._sent:
            numbers = host.double().split([self._sizes[at] for at in some])
            for at, part in zip(some, numbers, strict=True):
                parts[at] = part.numpy()
        return parts


def _send(tensors: list[Tensor]) -> tuple[Tensor, Any]:
    if len(tensors) == 1 and not tensors[0].is_cpu and tensors[0].is_contiguous():
        return _copy(tensors[0])
    return _copy(torch.cat(tensors))  # on the CPU also because the training may change its memory


def _copy(flat: Tensor) -> tuple[Tensor, Any]:
    """Host memory that will hold the numbers, and the event that says when it does."""
    device = flat.device
    if device.type == "cpu":
        return flat, None
    if device.type == "mps":
        host, event = flat.to("cpu", non_blocking=True), torch.mps.event.Event()
        event.record()
        return host, event
    # Only into pinned memory a device copies by itself.
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    host.copy_(flat, non_blocking=True)
    module = getattr(torch, device.type)
    event = module.Event()
    event.record(module.current_stream(device))
    return host, event
