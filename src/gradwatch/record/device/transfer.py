"""Numbers on their way from an accelerator: sent when they are made, read when they have come."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.rows import Parts


def wide(device: torch.device) -> torch.dtype:
    """The type results are kept in: float64, but on MPS, which has nothing wider than float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def cleaned(tensor: Tensor) -> Tensor:
    """In at least float32, with zeros where an element is not finite."""
    return at_least_single(tensor).nan_to_num(0.0, 0.0, 0.0)


def at_least_single(tensor: Tensor) -> Tensor:
    """In 32 bits or more: sums of 16-bit numbers would round to nothing."""
    return tensor if tensor.itemsize >= 4 else tensor.float()


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
    """Several small tensors, copied together from each device; nobody waits for the copies.

    Those of one type are joined by one operation: joining several types would copy one by one.
    """

    def __init__(self, parts: Sequence[Tensor]) -> None:
        flat = [part.detach().reshape(-1) for part in parts]
        self._keys = [(part.device, part.dtype) for part in flat]
        self._sizes = [part.numel() for part in flat]
        self._copies: dict[Any, tuple[Tensor, Any]] = {}
        for key in dict.fromkeys(self._keys):
            same = [part for part, mine in zip(flat, self._keys, strict=True) if mine == key]
            self._copies[key] = _send(same[0] if len(same) == 1 else torch.cat(same))

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
        hosts = {key: _numbers(host) for key, (host, _) in self._copies.items()}
        begin = dict.fromkeys(hosts, 0)
        parts = []
        for key, size in zip(self._keys, self._sizes, strict=True):
            parts.append(hosts[key][begin[key] : begin[key] + size])
            begin[key] += size
        return parts


def _numbers(host: Tensor) -> NDArray[np.float64]:
    if host.dtype in (torch.bfloat16, torch.float16):
        host = host.float()
    return host.numpy().astype(np.float64)


def _send(flat: Tensor) -> tuple[Tensor, Any]:
    device = flat.device.type
    if device == "cpu":
        return flat.clone(), None  # it may be the user's own memory
    if device == "mps":
        host = flat.to("cpu", non_blocking=True)
    else:
        host = pinned(flat)
        host.copy_(flat, non_blocking=True)
    return host, mark(flat.device)


def mark(device: torch.device, *, timed: bool = False) -> Any:
    """An event that is reached when everything launched on the device before it is done.

    On the device's own stream: that of the present device may be another one's.
    """
    options = {"enable_timing": True} if timed else {}
    if device.type == "mps":
        event: Any = torch.mps.event.Event(**options)
        event.record()
    else:
        module = getattr(torch, device.type)
        event = module.Event(**options)
        event.record(module.current_stream(device))
    return event


def sent_to(
    device: torch.device, numbers: NDArray[Any], dtype: torch.dtype | None = None
) -> Tensor:
    """An array on a device; from memory it reads by itself, so that nobody waits for it."""
    host = torch.from_numpy(numbers)
    if dtype is not None:
        host = host.to(dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def pinned(like: Tensor) -> Tensor:
    """Host memory a device can write to by itself; copies into other memory block."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
