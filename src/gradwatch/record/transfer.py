"""Numbers on their way from a device to the host: copied when they are made, read once here."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Parts = list[NDArray[np.float64]]
"""The numbers of several tensors, one flat array each."""


def alike(tensors: Iterable[tuple[int, Tensor]]) -> list[dict[int, Tensor]]:
    """Numbered tensors by their device and type."""
    groups: dict[Any, dict[int, Tensor]] = {}
    for at, tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), {})[at] = tensor
    return list(groups.values())


class Transfer:
    """Several small tensors, copied to the host together; nobody waits for the copies.

    They may lie on several devices and have several types: of each device and type one joined
    copy is sent. What is on the CPU is copied at once.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        flat = (tensor.detach().reshape(-1) for tensor in tensors)
        # On the CPU joined too: the training may change its memory.
        self._sent = [
            ({at: len(x) for at, x in some.items()}, *_copy(torch.cat(list(some.values()))))
            for some in alike(enumerate(flat))
        ]

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
        parts: dict[int, Tensor] = {}
        for sizes, host, _ in self._sent:
            parts.update(zip(sizes, host.double().split(list(sizes.values())), strict=True))
        return [parts[at].numpy() for at in range(len(parts))]


def _copy(flat: Tensor) -> tuple[Tensor, Any]:
    """Host memory that will hold the numbers, and the event that says when it does."""
    if flat.is_cpu:
        return flat, None
    if flat.is_mps:
        host, event = flat.to("cpu", non_blocking=True), torch.mps.event.Event()
        event.record()
        return host, event
    # Only into pinned memory a device copies by itself.
    host = torch.empty_like(flat, device="cpu", pin_memory=True).copy_(flat, non_blocking=True)
    return host, getattr(torch, flat.device.type).current_stream(flat.device).record_event()
