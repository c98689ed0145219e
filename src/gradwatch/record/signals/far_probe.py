"""The probe on accelerators: which outputs and inputs of a step were not finite, told afterwards.

The largest magnitude of a sample is one operation, overflows for no finite number, and is NaN or
infinite exactly where an element of the sample is. It goes into a slot of ours; the slots of a step
are sent when the optimizer steps.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.device_math import wide
from gradwatch.record.signals.far import is_far, spread
from gradwatch.record.signals.reading import PROBED

_INFINITY = float("inf")
_Look = tuple[torch.device, bool]


class FarProbe:
    """Two slots per layer and device: its output, its first input."""

    def __init__(self) -> None:
        self._slots: dict[torch.device, tuple[Tensor, Sequence[Tensor]]] = {}
        self._seen: dict[int, _Look] = {}

    def look(self, index: int, layers: int, output: Tensor, given: Tensor | None) -> None:
        """Layer `index` of `layers` has given this output for this input."""
        device = output.device
        if device not in self._slots:
            room = torch.zeros(2 * layers, dtype=wide(device), device=device)
            self._slots[device] = room, room.unbind(0)
        slots = self._slots[device][1]
        before = self._seen.get(index)
        _mark(output, slots[2 * index], again=before is not None)
        fed = before is not None and before[1]
        if given is not None and given.device == device and is_far(given):
            _mark(given, slots[2 * index + 1], again=fed)
            fed = True
        self._seen[index] = device, fed

    def take(self) -> tuple[dict[int, _Look], list[torch.device], list[Tensor]]:
        """What was seen since the last time: layers, devices, and the slots of each device."""
        seen, self._seen = self._seen, {}
        devices = list(dict.fromkeys(device for device, _ in seen.values()))
        return seen, devices, [self._slots[device][0] for device in devices]

    def clear(self) -> None:
        self._slots.clear()
        self._seen.clear()


def hits(
    seen: dict[int, _Look], devices: Sequence[torch.device], slots: Sequence[NDArray[np.float64]]
) -> dict[int, tuple[int, int]]:
    """Layers whose output was not finite: 1, and 1 where their input was not either."""
    found = {}
    bad = {device: ~np.isfinite(part) for device, part in zip(devices, slots, strict=True)}
    for index, (device, fed) in seen.items():
        if bad[device][2 * index]:
            found[index] = 1, int(fed and bad[device][2 * index + 1])
    return found


def _mark(tensor: Tensor, slot: Tensor, *, again: bool) -> None:
    sample = spread(tensor, PROBED)
    if again:  # a layer called twice: what the first call gave must not be lost
        top = torch.linalg.vector_norm(sample, _INFINITY, dtype=slot.dtype)
        torch.maximum(slot, top, out=slot)
    else:
        torch.linalg.vector_norm(sample, _INFINITY, dtype=slot.dtype, out=slot)
