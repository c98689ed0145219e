"""Tensors of every kind for the Triton engine, and how far it is from float64 numpy on them."""

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from tests.record.device.interpreting import quicken
from torch import Tensor

from gradwatch import kernel
from gradwatch.kernel import Batch
from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    RowTimes,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.triton_engine import TritonEngine
from gradwatch.record.tensors import gather

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
quicken()
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_RANDOM = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_RANDOM, dtype=torch.float64)


def _scattered(x: Tensor) -> Tensor:
    flat = x.view(-1).clone()
    flat[0] = float("nan")
    if len(flat) > 5:
        middle = len(flat) // 2
        flat[5], flat[middle], flat[middle + 1] = float("inf"), -float("inf"), -5.0
    return flat.view(x.shape) + 5.0


def _with_zero_rows(x: Tensor) -> Tensor:
    rows = torch.arange(len(x)) % 2
    return x * rows.view(-1, *[1] * (x.dim() - 1))


def _every_third_zero(x: Tensor) -> Tensor:
    return (x.view(-1) * (torch.arange(x.numel()) % 3 != 0)).view(x.shape)


def _first_good(x: Tensor) -> Tensor:
    bad = torch.full_like(x, float("inf"))
    bad.view(-1)[0] = x.view(-1)[0]
    return bad


def _negative_with_zeros(x: Tensor) -> Tensor:
    return -_every_third_zero(x).abs()


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda x: x,
    "offset": lambda x: 3.0 + 0.1 * x,
    "far offset": lambda x: 1.0 + 0.001 * x,
    "very far offset": lambda x: 1000.0 + 0.01 * x,
    "farthest offset": lambda x: 1000.0 + 0.003 * x,
    "tails": lambda x: x**5,
    "zeros": _every_third_zero,
    "zero rows": _with_zero_rows,
    "negative with zeros": _negative_with_zeros,
    "constant": lambda x: torch.full_like(x, 0.3),
    "all zero": torch.zeros_like,
    "subnormal": lambda x: x * 1e-40,
    "tiny": lambda x: x * 1e-30,
    "huge": lambda x: x * 6e37,
    "large": lambda x: x * 1e12,
    "wide": lambda x: x * 10.0 ** torch.randint(-40, 30, x.shape, generator=_RANDOM),
    "steps": lambda x: x + 1000.0 * (torch.arange(x.numel()).view(x.shape) // 300),
    "all NaN": lambda x: torch.full_like(x, float("nan")),
    "all infinite": lambda x: torch.full_like(x, -float("inf")),
    "some bad": _scattered,
    "one good": _first_good,
}


def made(kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return KINDS[kind](normal(*shape)).to(dtype)


class NoEngine(Engine):
    """In the place of the engine that takes what Triton does not: here it takes everything."""

    name = "none"

    def measure(self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted) -> NoReturn:
        raise AssertionError("a tensor was left to the other engine")

    def snapshot(self, tensors: Sequence[Tensor | None]) -> NoReturn:
        raise AssertionError("a tensor was left to the other engine")

    def step(
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> NoReturn:
        raise AssertionError("a tensor was left to the other engine")

    def output(self, tensor: Tensor) -> NoReturn:
        raise AssertionError("a tensor was left to the other engine")


def engine(*, tile: int = 512, programs: int = 64) -> TritonEngine:
    return TritonEngine(NoEngine(), tile=tile, programs=programs)


def arrived(parts: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """As numbers come over from a device: flat, in float64."""
    return [part.reshape(-1).to(torch.float64).numpy() for part in parts]


def measured(sent: Sent[DeviceMeasurement]) -> DeviceMeasurement:
    return sent.finish(arrived(sent.parts))


def stepped(sent: Sent[DeviceSteps]) -> DeviceSteps:
    return sent.finish(arrived(sent.parts))


def places_of(tensors: Sequence[Tensor | None]) -> Places:
    count = len(tensors)
    with np.errstate(over="ignore"):
        seeds = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    wholes = np.array([0 if t is None else t.numel() for t in tensors], np.int64)
    return Places(seeds, np.zeros(count, np.int64), wholes)


def row_times(tensors: Sequence[Tensor | None]) -> RowTimes:
    rows = [t.shape[0] if t is not None and t.dim() > 1 else 0 for t in tensors]
    return RowTimes(rows, torch.device("cpu"))


def differences(
    tensors: Sequence[Tensor | None], found: DeviceMeasurement, places: Places | None = None
) -> list[str]:
    """Where what was measured is not what the float64 kernel says, and by how much."""
    places = places or places_of(tensors)
    gathered = gather(tensors)
    kernel.select("none")
    truth = kernel.measure(
        gathered.batch,
        bins=True,
        seeds=places.seeds,
        offsets=places.offsets,
        wholes=places.wholes,
    )
    wrong = []
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            where = f"{tuple(tensor.shape)} {tensor.dtype}"
            found_record, true_record = found.records[index], truth.records[index]
            wrong += [f"{where}: {text}" for text in _record_differs(found_record, true_record)]
    wrong += _bins_differ(found, truth)
    wrong += _sketches_differ(found, truth, gathered.batch)
    if found.hashes is not None and found.spreads is not None:
        same = found.hashes == kernel.hashes(gathered.batch, places.offsets)
        wrong += [f"hash of {index}" for index in np.flatnonzero(~same)]
        close = np.isclose(
            found.spreads, kernel.row_spread(gathered.batch), rtol=1e-6, atol=0, equal_nan=True
        )
        wrong += [f"spread of {index}" for index in np.flatnonzero(~close)]
    return wrong


def _record_differs(found: np.void, true: np.void) -> list[str]:
    std, largest = float(true["std"]), float(true["abs_max"])
    allowed = dict.fromkeys(("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows"), 0.0)
    allowed |= dict.fromkeys(("min", "max", "abs_max"), 0.0)
    allowed |= {"mean": 1e-6 * max(abs(float(true["mean"])), std)}
    allowed |= {"std": 1e-6 * max(std, 1e-7 * largest)}
    allowed |= {name: 1e-6 * float(true[name]) for name in ("norm", "abs_mean")}
    # Of a width near the type's rounding of the offset the shape means nothing.
    if std > 1e-5 * largest or std == 0 or np.isnan(std):
        allowed |= {n: 1e-4 * max(1.0, abs(float(true[n]))) for n in ("skewness", "kurtosis")}
    wrong = []
    for name, tolerance in allowed.items():
        got, want = float(found[name]), float(true[name])
        if np.isnan(want) != np.isnan(got) or abs(got - want) > tolerance:
            wrong.append(f"{name} {got!r} instead of {want!r}")
    return wrong


def _bins_differ(found: DeviceMeasurement, truth: kernel.Measurement) -> list[str]:
    if found.bins is None:
        return []
    return [
        f"bins of {index}"
        for index, (mine, true) in enumerate(zip(found.bins, truth.bins, strict=True))
        if mine.first_exponent != true.first_exponent
        or not np.array_equal(mine.negative, true.negative)
        or not np.array_equal(mine.positive, true.positive)
    ]


def _sketches_differ(
    found: DeviceMeasurement, truth: kernel.Measurement, batch: Batch
) -> list[str]:
    if found.sketches is None or truth.sketches is None:
        return []
    wrong = []
    for index, count in enumerate(batch.counts.tolist()):
        want = truth.sketches[index].astype(float)
        size = np.nan_to_num(float(truth.records["abs_mean"][index])) * count**0.5
        error = np.abs(found.sketches[index].astype(float) - want)[np.isfinite(want)]
        if count and error.max(initial=0.0) > 2e-6 * size + 1e-300:
            wrong.append(f"sketch of {index}: {error.max() / size:.1e}")
    return wrong
