"""Weights that change between two steps: somebody else than the optimizer has set them.

When the hooks for a recorded step are put up, right after the step before it, some elements of up
to 64 tensors are kept; just before the optimizer steps they are compared. Of more tensors 64 are
taken by turns: a layer that is set anew once would else mostly be missed.
Weights on an accelerator are not read: that would have to wait for it.
"""

from typing import Any

import numpy as np
import torch

from gradwatch.record.parameters import ParameterInfo, TrackedOptimizer, TrackedParameters
from gradwatch.record.recorder import Recorder
from gradwatch.record.tensors import as_array, sample_bits

TENSORS = 64
"""Of each optimizer, compared before one step."""
ELEMENTS = 1024
"""Of these together; of one tensor 16 to 64."""
_MOST_NOTED = 16


class OutsideChanges:
    """The largest change goes to the scalar `outside_change`, with names to `run.info`."""

    def __init__(self, recorder: Recorder, parameters: TrackedParameters) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._turn = 0
        self._chosen: dict[int, tuple[tuple[ParameterInfo, ...], list[ParameterInfo]]] = {}
        self._kept: list[tuple[ParameterInfo, torch.dtype, bytes, int]] = []
        self._noted: list[dict[str, Any]] = []
        self._compared = False

    def keep(self) -> None:
        """A step is over, or none was made yet: remember the weights until the next begins."""
        self._kept.clear()
        for tracked in self._parameters.optimizers:
            infos = self._of(tracked)
            most = _elements(len(infos))
            for place in range(self._turn, self._turn + min(TENSORS, len(infos))):
                info = infos[place % len(infos)]
                parameter = info.ref()
                bits = None if parameter is None else sample_bits(parameter, most)
                if parameter is not None and bits is not None:
                    self._kept.append((info, parameter.dtype, bits, most))
        self._turn += TENSORS

    def _of(self, tracked: TrackedOptimizer) -> list[ParameterInfo]:
        """Its matrices, or all where it has none; found once for each set of parameters."""
        known = self._chosen.get(id(tracked))
        if known is None or known[0] is not tracked.parameters:
            pairs = list(zip(tracked.parameters, tracked.rows, strict=True))
            chosen = [info for info, rows in pairs if rows] or list(tracked.parameters)
            self._chosen[id(tracked)] = known = (tracked.parameters, chosen)
        return known[1]

    def compare(self, step: int) -> None:
        """An optimizer is about to step."""
        kept, self._kept = self._kept, []
        if kept and not self._compared:
            self._compared = True
            self._recorder.note({"weights_compared": True})
        changes: dict[str, float] = {}
        for info, dtype, was, most in kept:
            parameter = info.ref()
            if parameter is None or parameter.dtype is not dtype:
                continue
            now = sample_bits(parameter, most)
            if now is not None and now != was and len(now) == len(was):
                changes[info.name] = _distance(was, now, dtype)
        if not changes:
            return
        largest = max(changes.values())
        self._recorder.scalars(step, {"outside_change": largest})
        if len(self._noted) < _MOST_NOTED:
            names = [name for name, change in changes.items() if change >= 0.5 * largest]
            entry = {"step": step, "change": largest, "names": names, "compared": len(kept)}
            self._noted.append(entry)
            self._recorder.note({"outside_changes": list(self._noted)})


def _elements(tensors: int) -> int:
    """How many of each, where there are so many tensors; the kernel takes multiples of four."""
    return max(ELEMENTS // TENSORS, min(64, ELEMENTS // max(tensors, 1) // 4 * 4))


def _distance(was: bytes, now: bytes, dtype: torch.dtype) -> float:
    """Norm of the difference, in parts of the larger of the two norms: 0 to 2."""
    first, second = (
        as_array(torch.frombuffer(bytearray(bits), dtype=dtype)).astype(np.float64)
        for bits in (was, now)
    )
    size = max(float(np.linalg.norm(first)), float(np.linalg.norm(second)))
    change = float(np.linalg.norm(second - first)) / size if size else 0.0
    return change if np.isfinite(change) else 0.0
