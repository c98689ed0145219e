"""Numbers on their way from an accelerator: sent when they are made, read when they have come."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwatch.record.device.statistics import wide
from gradwatch.record.rows import Parts


class Load:
    """Small tensors for one transfer, and where each lies in it."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def add(self, *tensors: Tensor) -> slice:
        """Put these in; the place where their numbers will be among those that arrive."""
        start = len(self.parts)
        self.parts += tensors
        return slice(start, len(self.parts))


class Transfer:
    """Several small tensors, copied together from each device; nobody waits for the copies."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._devices = [part.device for part in parts]
        self._sizes = [part.numel() for part in parts]
        self._copies = {
            device: _send(_joined([part for part in parts if part.device == device]))
            for device in dict.fromkeys(self._devices)
        }

    @property
    def arrived(self) -> bool:
        """Whether all copies are done; asks the device without waiting for it."""
        return all(event is None or event.query() for _, event in self._copies.values())

    def wait(self) -> None:
        """Block until everything is here; at the end of a run only."""
        for _, event in self._copies.values():
            if event is not None:
                event.synchronize()

    def parts(self) -> Parts:
        """The tensors' numbers, in the order they were given."""
        hosts = {key: host.numpy().astype(np.float64) for key, (host, _) in self._copies.items()}
        begin = dict.fromkeys(hosts, 0)
        parts = []
        for device, size in zip(self._devices, self._sizes, strict=True):
            parts.append(hosts[device][begin[device] : begin[device] + size])
            begin[device] += size
        return parts


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1).to(wide(part.device)) for part in parts])


def _send(flat: Tensor) -> tuple[Tensor, Any]:
    device = flat.device.type
    if device == "cpu":
        return flat, None
    if device == "mps":
        host = flat.to("cpu", non_blocking=True)
        event: Any = torch.mps.event.Event()
    else:
        host = pinned(flat)
        host.copy_(flat, non_blocking=True)
        event = getattr(torch, device).Event()
    # An event is reached when everything launched before it on this stream is done: the copy too.
    event.record()
    return host, event


def pinned(like: Tensor) -> Tensor:
    """Host memory a device can write to by itself; copies into other memory block."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
