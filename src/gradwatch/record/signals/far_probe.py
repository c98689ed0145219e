"""The probe on accelerators: which outputs and inputs of a step were not finite, told afterwards.

The largest magnitude of a sample is one operation, overflows for no finite number, and is NaN or
infinite exactly where an element of the sample is. It goes into a slot of ours; the slots of a step
are sent when the optimizer steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.far.arithmetic import wide
from gradwatch.record.signals.far import is_far, spread
from gradwatch.record.signals.reading import PROBED

_INFINITY = float("inf")
_Seen = dict[int, tuple[torch.device, bool]]
"""Layers that were looked at: on which device, and whether their input was too."""


@dataclass(frozen=True)
class Looks:
    """What was looked at in one step."""

    seen: _Seen
    devices: list[torch.device]
    slots: list[Tensor]
    """Of each device."""

    def hits(self, arrived: Sequence[NDArray[np.float64]]) -> dict[int, tuple[int, int]]:
        """Layers whose output was not finite: 1, and 1 where their input was not either."""
        bad = [~np.isfinite(part) for part in arrived]
        found = {}
        for index, (device, fed) in self.seen.items():
            here = bad[self.devices.index(device)]
            if here[2 * index]:
                found[index] = 1, int(fed and here[2 * index + 1])
        return found


class FarProbe:
    """Two slots per layer and device: its output, its first input."""

    def __init__(self) -> None:
        self._slots: dict[torch.device, tuple[Tensor, Sequence[Tensor]]] = {}
        self.seen: _Seen = {}

    def look(self, index: int, layers: int, output: Tensor, given: Tensor | None) -> None:
        """Layer `index` of `layers` has given this output for this input."""
        device = output.device
        if device not in self._slots:
            room = torch.zeros(2 * layers, dtype=wide(device), device=device)
            self._slots[device] = room, room.unbind(0)
        slots = self._slots[device][1]
        before = self.seen.get(index)
        _mark(output, slots[2 * index], again=before is not None)
        fed = before is not None and before[1]
        if given is not None and given.device == device and is_far(given):
            _mark(given, slots[2 * index + 1], again=fed)
            fed = True
        self.seen[index] = device, fed

    def take(self) -> Looks:
        """What was seen since the last time."""
        seen, self.seen = self.seen, {}
        devices = list(dict.fromkeys(device for device, _ in seen.values()))
        return Looks(seen, devices, [self._slots[device][0] for device in devices])

    def clear(self) -> None:
        self._slots.clear()
        self.seen.clear()


def _mark(tensor: Tensor, slot: Tensor, *, again: bool) -> None:
    sample = spread(tensor, PROBED)
    if again:  # a layer called twice: what the first call gave must not be lost
        top = torch.linalg.vector_norm(sample, _INFINITY, dtype=slot.dtype)
        torch.maximum(slot, top, out=slot)
    else:
        torch.linalg.vector_norm(sample, _INFINITY, dtype=slot.dtype, out=slot)
