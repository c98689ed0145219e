"""An engine's numbers held against the CPU kernel's, on made tensors that are hard to measure.

Run before a Triton engine is trusted on a device, and by `python -m benchmarks gpu`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    RowTimes,
    Sent,
    Wanted,
    joined_output,
)
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import gather
from gradwatch.stats.rows import RowMemory, name_seed

TOLERANCE = {
    "mean": 2e-6,
    "std": 2e-6,
    "norm": 2e-6,
    "abs_mean": 1e-5,
    "skewness": 3e-4,
    "kurtosis": 3e-4,
    "sketches": 2e-5,
    "spreads": 1e-5,
    "update_norm": 1e-5,
    "before_norm": 1e-5,
    "ratio_rms": 1e-5,
    "output": 1e-5,
}
"""Largest error, relative to the scale of each number; 0 for what is not named: exact."""

_SHAPES = ((37, 50), (1,), (5, 700), (1025,), (9, 129))
_BETA, _EPSILON, _STEPS = 0.99, 1e-8, 3
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class NumberCheck:
    """One statistic of all made tensors: how far the worst is off."""

    name: str
    max_relative_error: float
    ok: bool


SentChecks = Sent[list[NumberCheck]]


def send_proof(engine: Engine, device: torch.device, dtypes: Iterable[torch.dtype]) -> SentChecks:
    """Launch everything the engine can do; when the numbers are here they become checks."""
    sent = [trial for dtype in dtypes for trial in _trials(engine, device, dtype)]
    parts = [part for trial in sent for part in trial.parts]

    def finish(arrived: Parts) -> list[NumberCheck]:
        checks, begin = [], 0
        for trial in sent:
            end = begin + len(trial.parts)
            checks += trial.finish(arrived[begin:end])
            begin = end
        return checks

    return Sent(parts, finish)


def _trials(engine: Engine, device: torch.device, dtype: torch.dtype) -> list[SentChecks]:
    label = str(dtype).removeprefix("torch.")
    tensors = made_tensors(dtype)
    there = [_moved(tensor, device) for tensor in tensors]
    count = len(tensors)
    places = Places(
        np.array([name_seed(f"made {i}") for i in range(count)], np.uint64),
        np.zeros(count, np.int64),
        np.array([tensor.numel() for tensor in tensors], np.int64),
    )
    rows = RowTimes([t.shape[0] if t.dim() > 1 else 0 for t in tensors], device)
    gradients = engine.measure(there, places, Wanted(histograms=True, sketches=True, rows=rows))
    weights = engine.measure(there, places, Wanted(hashes=True))
    return [
        _checked(gradients, lambda got: _check_gradients(label, tensors, places, got)),
        _checked(weights, lambda got: _check_weights(label, tensors, places, got)),
        _step_trial(engine, label, tensors, there),
        _output_trial(engine, label, tensors[0], there[0]),
    ]


def _checked(sent: Sent[_Result], check: Callable[[_Result], list[NumberCheck]]) -> SentChecks:
    return Sent(sent.parts, lambda arrived: check(sent.finish(arrived)))


def made_tensors(dtype: torch.dtype) -> list[Tensor]:
    """Ordinary, far from zero, with NaN and infinities, subnormal, constant, huge, not aligned."""
    generator = torch.Generator().manual_seed(17)
    tensors = []
    for shape in _SHAPES:
        x = torch.randn(*shape, generator=generator, dtype=torch.float64)
        bad = x.clone()
        bad.view(-1)[0] = torch.nan
        bad.view(-1)[x.numel() // 2] = torch.inf
        bad.view(-1)[-1] = -torch.inf
        holes = x.clone()
        holes[::2] = 0.0
        subnormal = torch.finfo(dtype).tiny / 8
        huge = min(torch.finfo(dtype).max / 8, 2.0**100)
        kinds = (x, 1.0 + 0.001 * x, bad, holes, x * subnormal, x * huge, torch.full_like(x, 0.3))
        tensors += [kind.to(dtype) for kind in kinds]
    flat = torch.randn(5000, generator=generator).to(dtype)
    return [*tensors, flat[1:3001], flat[3:8]]


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, and as little aligned as it was."""
    if tensor.storage_offset() == 0:
        return tensor.to(device)
    room = torch.empty(tensor.numel() + tensor.storage_offset(), dtype=tensor.dtype, device=device)
    return room[tensor.storage_offset() :].copy_(tensor)


# -- against the kernel --------------------------------------------------------------------------


def _check_gradients(
    label: str, tensors: Sequence[Tensor], places: Places, got: DeviceMeasurement
) -> list[NumberCheck]:
    held = gather(tensors)
    memory = RowMemory([int(rows) for rows in held.batch.rows])
    want = kernel.measure(
        held.batch,
        bins=True,
        seeds=places.seeds,
        offsets=places.offsets,
        wholes=places.wholes,
        touched=memory.fresh(held.batch.rows),
    )
    dead, untouched = memory.remember()
    checks = _check_records(label, got.records, want.records)
    bins = 0.0 if got.bins is not None else np.inf
    if got.bins is not None:
        for a, b in zip(got.bins, want.bins, strict=True):
            same = a.first_exponent == b.first_exponent and np.array_equal(
                np.stack([a.negative, a.positive]), np.stack([b.negative, b.positive])
            )
            bins = max(bins, 0.0 if same else 1.0)
    assert want.sketches is not None
    size = np.nan_to_num(want.records["abs_mean"]) * np.sqrt(held.batch.counts)
    return [
        *checks,
        NumberCheck(f"{label} histograms", bins, bins == 0.0),
        _check(label, "sketches", got.sketches, want.sketches, size[:, None]),
        _check(label, "dead_rows", got.dead_rows, dead),
        _check(label, "untouched_rows", got.untouched_rows, untouched),
    ]


def _check_records(
    label: str, got: NDArray[np.void], want: NDArray[np.void], prefix: str = ""
) -> list[NumberCheck]:
    std, top = want["std"], want["abs_max"]
    # Of a width near the type's rounding of the offset the shape means nothing.
    shaped = ~(std <= 1e-5 * top) | (std == 0)
    scales = {
        "mean": np.maximum(np.abs(want["mean"]), std),
        "std": np.maximum(std, 1e-7 * top),
        "skewness": np.where(shaped, np.maximum(1.0, np.abs(want["skewness"])), np.inf),
        "kurtosis": np.where(shaped, np.maximum(1.0, np.abs(want["kurtosis"])), np.inf),
    }
    names = want.dtype.names or ()
    return [_check(label, name, got[name], want[name], scales.get(name), prefix) for name in names]


def _check_weights(
    label: str, tensors: Sequence[Tensor], places: Places, got: DeviceMeasurement
) -> list[NumberCheck]:
    held = gather(tensors)
    records = kernel.measure(held.batch).records
    return [
        *_check_records(label, got.records, records, "weight "),
        _check(label, "hashes", got.hashes, kernel.hashes(held.batch, places.offsets)),
        _check(label, "spreads", got.spreads, kernel.row_spread(held.batch), 1.0),
    ]


def _step_trial(
    engine: Engine, label: str, tensors: Sequence[Tensor], there: Sequence[Tensor]
) -> SentChecks:
    """One step of made weights: some unchanged, some gradients zero."""
    second = [(tensor.float() ** 2).nan_to_num(1.0, 1.0).to(tensor.dtype) for tensor in tensors]
    after = [tensor.clone() for tensor in tensors]
    for tensor in after:
        tensor.view(-1)[::3] *= 1.25
    count, device = len(tensors), there[0].device
    before = engine.snapshot(there)
    divisors = DeviceDivisors(
        [tensor.to(device) for tensor in second],
        [float(_STEPS)] * count,
        np.full(count, _BETA),
        np.full(count, _EPSILON),
    )
    sent = engine.step(before, [tensor.to(device) for tensor in after], there, divisors)
    olds, news, seconds = gather(tensors), gather(after), gather(second)
    updates, ratios = kernel.step(
        olds.batch,
        news.batch,
        olds.batch,
        seconds.batch,
        correction=np.full(count, 1.0 - _BETA**_STEPS),
        eps=np.full(count, _EPSILON),
    )
    assert len(news.tensors) == len(seconds.tensors)  # they had to live until here

    def check(got: DeviceSteps) -> list[NumberCheck]:
        if got.updates is None or got.ratios is None:
            return [NumberCheck(f"{label} step", np.inf, False)]
        return [
            *(_check(label, n, got.updates[n], updates[n]) for n in updates.dtype.names or ()),
            *(_check(label, n, got.ratios[n], ratios[n]) for n in ratios.dtype.names or ()),
        ]

    return _checked(sent, check)


def _output_trial(engine: Engine, label: str, tensor: Tensor, there: Tensor) -> SentChecks:
    x = tensor.double()
    want = torch.stack([(x == 0).sum(), 0 * x.sum(), x.abs().max(), x.sum(), x.square().sum()])
    scale = torch.stack([want[0] * 0 + 1, want[1] + 1, want[2], x.abs().sum(), want[4]])

    def check(arrived: Parts) -> list[NumberCheck]:
        joined = np.array(joined_output(arrived[0]))
        return [_check(label, "output", joined, want.numpy(), scale.numpy())]

    return Sent([engine.output(there)], check)


def _check(
    label: str,
    name: str,
    got: NDArray[np.generic] | None,
    want: NDArray[np.generic],
    scale: NDArray[np.float64] | float | None = None,
    prefix: str = "",
) -> NumberCheck:
    """How far the worst number is off, in units of `scale` (without: of the number itself)."""
    title = f"{label} {prefix}{name}"
    limit = TOLERANCE.get(name, 0.0)
    if got is None or got.shape != want.shape:
        return NumberCheck(title, np.inf, False)
    if limit == 0.0 and want.dtype.kind in "iu":
        same = np.array_equal(got.astype(np.uint64), want.astype(np.uint64))
        return NumberCheck(title, 0.0 if same else 1.0, same)
    a, b = got.astype(np.float64), want.astype(np.float64)
    unit = np.abs(b) if scale is None else np.broadcast_to(np.asarray(scale, np.float64), b.shape)
    with np.errstate(all="ignore"):
        error = np.abs(a - b) / np.maximum(unit, 1e-300)
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    worst = float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))
    return NumberCheck(title, worst, worst <= limit)
