"""The calls of the layers in one step, and the rows they make."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS, merge
from gradwatch.record.signals.gates import Reading
from gradwatch.stats import Family, Stat, State, row_dtype

_GATES = (Stat.ACT_GATE_ZERO_FRACTION, Stat.ACT_FLAT_FRACTION, Stat.ACT_ENTROPY)


class FarRecord(NamedTuple):
    """An output on an accelerator: its elements, those that were seen, and sums not here yet."""

    size: int
    seen: int
    numbers: tuple[Tensor, ...]
    """Zeros, non-finite elements, and of the others the largest magnitude, the sum and the norm."""


@dataclass
class Call:
    """One call of one layer. It counts once a backward has come through its output."""

    layer: str
    record: NDArray[np.void] | FarRecord | None
    readings: list[tuple[str, Reading]]
    tracked: bool
    """Whether its output has an autograd node, so that we hear of the backward."""
    in_backward: bool
    reached: bool = False
    sampled: bool = False
    """Whether only some elements of its output were looked at."""

    def reach(self, gradients: Any) -> None:
        self.reached = True


def counted(calls: list[Call]) -> list[Call]:
    """Calls a backward came through; those before them that need no gradient count with them.

    What a checkpoint runs again in the backward counts only where its first run was not seen.
    """
    kept: list[Call] = []
    following = False
    for call in reversed(calls):
        following = call.reached if call.tracked else following
        if following:
            kept.append(call)
    kept.reverse()
    seen = {call.layer for call in kept if not call.in_backward}
    return [call for call in kept if not (call.in_backward and call.layer in seen)]


def rows_of(calls: list[Call]) -> tuple[list[str], NDArray[np.void], NDArray[np.uint8]]:
    """Layers, rows, states: calls of one layer are merged, gates averaged over their elements."""
    records: dict[str, list[NDArray[np.void]]] = {}
    found: dict[tuple[str, str], list[Reading]] = {}
    sampled: set[str] = set()
    for call in calls:
        parts = records.setdefault(call.layer, [])
        if isinstance(call.record, np.ndarray):
            parts.append(call.record)
        if call.sampled:
            sampled.add(call.layer)
        for layer, reading in call.readings:
            records.setdefault(layer, [])
            found.setdefault((layer, str(reading.stat)), []).append(reading)
    rows = _act_rows([_joined(parts) for parts in records.values()])
    place = {layer: index for index, layer in enumerate(records)}
    for (layer, stat), readings in found.items():
        rows[stat][place[layer]] = _average(readings)
    states = [State.MEASURED if parts else State.UNSUPPORTED for parts in records.values()]
    for layer in sampled:
        states[place[layer]] = State.SAMPLED
    return list(records), rows, np.array(states, np.uint8)


def _joined(parts: list[NDArray[np.void]]) -> NDArray[np.void]:
    """One record for all calls of a layer; an empty one where none could be read."""
    if len(parts) == 1:
        return parts[0]
    joined = np.zeros(1, MOMENTS)
    if parts:
        joined[0] = merge(_stacked(parts))
    return joined


def _stacked(parts: list[NDArray[np.void]]) -> NDArray[np.void]:
    """As np.concatenate, which compares the fields of structured arrays one by one."""
    return np.frombuffer(b"".join(part.tobytes() for part in parts), MOMENTS)


def _act_rows(joined: list[NDArray[np.void]]) -> NDArray[np.void]:
    records = _stacked(joined)
    rows = np.zeros(len(records), row_dtype(Family.ACT))
    rows["act_count"] = records["count"]
    rows["act_mean"], rows["act_std"] = records["mean"], records["std"]
    rows["act_abs_max"] = records["abs_max"]
    with np.errstate(invalid="ignore"):
        rows["act_zero_fraction"] = records["zeros"] / records["count"]
    rows["act_nonfinite"] = records["nan"] + records["pos_inf"] + records["neg_inf"]
    for stat in _GATES:
        rows[str(stat)] = np.nan
    return rows


def _average(readings: list[Reading]) -> float:
    weight = sum(reading.weight for reading in readings)
    if not weight:
        return float("nan")
    return float(sum(reading.value * reading.weight for reading in readings)) / weight
