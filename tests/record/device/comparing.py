"""Two recordings of one training: where they differ by more than rounding."""

from math import isnan

import numpy as np
from tests.record.sinks import MemorySink

from gradwatch.run import Histogram
from gradwatch.stats import Family, State

SCALARS = (
    *("clip_factor", "backwards", "stale", "skipped", "loss", "loss_nonfinite"),
    *("input_rms", "input_abs_max", "input_nonfinite"),
)
OTHERS = ("act_entropy",)
"""Entropies are not taken on devices."""


def differences(near: MemorySink, far: MemorySink) -> list[str]:
    """Rows, states, statistics and scalars that are not the same."""
    found = [f"only in one: {key}" for key in near.rows.keys() ^ far.rows.keys()]
    for key in near.rows.keys() & far.rows.keys():
        row, state = near.rows[key]
        other, far_state = far.rows[key]
        if key[0] is Family.UPDATE and far_state is State.SAMPLED:
            if not _close(row["update_norm"], other["update_norm"], 0.1, 0.0):
                found.append(f"update_norm {key}")
            continue
        if key[0] is Family.PROBE:
            found += _probe(row, other, far_state, str(key))
            continue
        if far_state is not state:
            found.append(f"{key}: {far_state} instead of {state}")
        found += [
            f"{name} {key}" for name in row.dtype.names or () if not _same(row, other, name, key[0])
        ]
    for step, scalars in near.logged.items():
        for name in SCALARS:
            here, there = scalars.get(name), far.logged[step].get(name)
            if (here is None) != (there is None):
                found.append(f"{name} of step {step} only in one")
            elif here is not None and there is not None and not _close(here, there, 1e-5, 0.0):
                found.append(f"{name} of step {step}: {there} instead of {here}")
    return found


def moved(near: MemorySink, far: MemorySink) -> int:
    """The most elements of one tensor that are in another bin."""
    assert near.bins.keys() == far.bins.keys()
    return max(_moved(near.bins[key], far.bins[key]) for key in near.bins)


def _probe(row: np.void, other: np.void, state: State, key: str) -> list[str]:
    """On devices only that there was something is known, and from a sample."""
    same = all(
        (row[name] > 0) == (other[name] > 0)
        for name in ("probe_nonfinite", "probe_input_nonfinite", "probe_training")
    )
    return [] if same and state is State.SAMPLED else [f"probe {key}: {other} {state}"]


def _same(row: np.void, other: np.void, name: str, family: Family) -> bool:
    if name in OTHERS:
        return True
    if name == "grad_sketch":  # as long as its gradient
        least = 1e-5 * float(np.nan_to_num(row["grad_norm"]))
        return np.allclose(row[name], other[name], rtol=1e-4, atol=least, equal_nan=True)
    size = f"{family}_std"
    std = float(np.nan_to_num(row[size])) if size in (row.dtype.names or ()) else 0.0
    if name.endswith(("skewness", "kurtosis", "cosine")):
        return _close(row[name], other[name], 1e-3, 1e-3)
    return _close(row[name], other[name], 1e-5, max(1e-5 * std, 1e-12))


def _close(one: float, other: float, relative: float, least: float) -> bool:
    if isnan(one) or isnan(other):
        return isnan(one) and isnan(other)
    return abs(float(one) - float(other)) <= max(relative * abs(float(one)), least)


def _moved(one: Histogram, other: Histogram) -> int:
    parts = ("count", "zeros", "nan", "positive_inf", "negative_inf")
    assert all(getattr(one, part) == getattr(other, part) for part in parts)
    first = min(one.first_exponent, other.first_exponent)
    last = max(h.first_exponent + len(h.positive) for h in (one, other))
    tables = np.zeros((2, 2, last - first), np.int64)
    for table, histogram in zip(tables, (one, other), strict=True):
        start = histogram.first_exponent - first
        for line, side in zip(table, (histogram.negative, histogram.positive), strict=True):
            line[start : start + len(side)] = side
    return int(np.abs(tables[0] - tables[1]).sum()) // 2
