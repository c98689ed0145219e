"""The engine of torch operations against the CPU's kernel, on tensors of every kind."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.device.chunks import chunk_sums
from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    Places,
    RowTimes,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.torch_engine import TorchEngine
from gradwatch.record.device.transfer import Transfer
from gradwatch.record.tensors import gather
from gradwatch.stats.rows import WINDOW, RowMemory

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SHAPES = [(37, 50), (1,), (3,), (1024,), (1025,), (2047,), (5, 700), (300, 7), (4, 3, 5, 9)]
SHAPES += [(2, 3000), (70, 1000)]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
KINDS = {
    "gaussian": lambda x, g: x,
    "offset": lambda x, g: 3.0 + 0.1 * x,
    "far offset": lambda x, g: 1.0 + 0.001 * x,
    "very far offset": lambda x, g: 1000.0 + 0.01 * x,
    "tails": lambda x, g: x**5,
    "zeros": lambda x, g: _with(x, slice(None, None, 3), 0.0),
    "zero rows": lambda x, g: x * (torch.arange(len(x)) % 2).view(-1, *[1] * (x.dim() - 1)),
    "constant": lambda x, g: torch.full_like(x, 0.3),
    "all zero": lambda x, g: torch.zeros_like(x),
    "denormal": lambda x, g: x * 1e-40,
    "tiny": lambda x, g: x * 1e-30,
    "huge": lambda x, g: x * 6e37,
    "large": lambda x, g: x * 1e12,
    "wide": lambda x, g: x * 10.0 ** torch.randint(-40, 30, x.shape, generator=g),
    "nan": lambda x, g: torch.full_like(x, float("nan")),
    "inf": lambda x, g: torch.full_like(x, -float("inf")),
    "bad": lambda x, g: (
        _with(x, slice(None, None, 7), [float("nan"), float("inf"), -float("inf")]) + 5
    ),
    "bad and positive": lambda x, g: _with(x.abs() + 9, slice(1, None, 5), [float("inf")]),
    "mostly bad": lambda x, g: _with(x, slice(1, None), [float("inf"), float("nan")]),
}
EXACT = ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows", "min", "max", "abs_max")


def _with(x: Tensor, where: slice, values: float | list[float]) -> Tensor:
    flat = x.reshape(-1)
    places = torch.arange(len(flat))[where]
    some = torch.tensor(values, dtype=x.dtype).reshape(-1)
    flat[places] = some[torch.arange(len(places)) % len(some)]
    return flat.view(x.shape)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def arrived(sent: Sent) -> list[np.ndarray]:
    return Transfer(sent.parts).parts() if sent.parts else []


def places(
    tensors: Sequence[Tensor | None],
    offsets: Sequence[int] | None = None,
    wholes: Sequence[int] | None = None,
) -> Places:
    sizes = [0 if tensor is None else tensor.numel() for tensor in tensors]
    return Places(
        np.arange(1, len(tensors) + 1, dtype=np.uint64) * GOLDEN,
        np.array([0] * len(tensors) if offsets is None else offsets, np.int64),
        np.array(sizes if wholes is None else wholes, np.int64),
    )


def measured(tensors: Sequence[Tensor | None], placed: Places | None = None) -> DeviceMeasurement:
    wanted = Wanted(histograms=True, sketches=True, hashes=True)
    sent = TorchEngine(CPU).measure(tensors, placed or places(tensors), wanted)
    return sent.finish(arrived(sent))


def compare(tensors: list[Tensor], placed: Places | None = None) -> None:
    placed = placed or places(tensors)
    found, held = measured(tensors, placed), gather(tensors)
    batch = held.batch
    expected, bins, sketches = kernel.measure(
        batch, bins=True, seeds=placed.seeds, offsets=placed.offsets, wholes=placed.wholes
    )
    records = found.records
    for name in EXACT:
        np.testing.assert_array_equal(records[name], expected[name], name)
    std, top = expected["std"], expected["abs_max"]
    huge = top > 1e35  # the sum of a chunk leaves the range of float32
    scales = {
        "mean": np.maximum(np.abs(expected["mean"]), std),
        "std": np.maximum(std, 1e-7 * top),
        "norm": expected["norm"],
        # On the CPU torch adds 1024 equal magnitudes one by one: they round alike.
        "abs_mean": np.where(huge, np.inf, 4 * expected["abs_mean"]),
    }
    for name, scale in scales.items():
        np.testing.assert_array_equal(
            np.isnan(records[name]) & ~huge, np.isnan(expected[name]) & ~huge, name
        )
        error = np.abs(records[name] - expected[name])
        assert not (error > 2e-6 * scale).any(), (name, error, scale)
    # Of a width near the type's rounding of the offset the shape means nothing.
    clear = (std > 1e-5 * top) | (std == 0)
    for name in ("skewness", "kurtosis"):
        np.testing.assert_array_equal(np.isnan(records[name]), np.isnan(expected[name]), name)
        error = np.abs(records[name] - expected[name])[clear]
        assert not (error > 3e-4 * np.maximum(1.0, np.abs(expected[name][clear]))).any(), name
    assert found.bins is not None
    np.testing.assert_array_equal(found.bins.first_exponents, bins.first_exponents)
    np.testing.assert_array_equal(found.bins.counts, bins.counts)
    assert found.sketches is not None
    size = np.nan_to_num(expected["abs_mean"]) * np.sqrt(expected["count"])
    off = np.abs(found.sketches[~huge].astype(float) - sketches[~huge]).max(1, initial=0.0)
    assert not (off > 2e-5 * size[~huge] + 1e-300).any()
    np.testing.assert_allclose(found.spreads, kernel.row_spread(batch), rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_as_the_kernel_has_it(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    compare(
        [
            KINDS[kind](torch.randn(*s, generator=generator, dtype=torch.float64), generator).to(
                dtype
            )
            for s in SHAPES
        ]
    )


def test_slabs_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors are cut; those of several types, and some that are not there, lie between."""
    generator = torch.Generator().manual_seed(0)
    several = [torch.randn(*shape, generator=generator) for shape in [(90, 1000), (7,), (300, 301)]]
    several += [one.bfloat16() for one in several] + [several[0].double(), several[2].t()]
    several[2][:, ::3] = float("inf")
    monkeypatch.setattr("gradwatch.record.device.torch_plan.WORK", 9 * 20_000 + 100_000)
    monkeypatch.setattr("gradwatch.record.device.torch_plan.MOST_LAUNCHES", 1e9)
    monkeypatch.setattr("gradwatch.record.device.chunks.AT_ONCE", 1 << 13)
    compare(several)
    alone = [measured([one]).hashes for one in several]
    again = measured([*several, None, several[0].clone()]).hashes
    assert again is not None
    assert again[:-2].tolist() == [int(one[0]) for one in alone if one is not None]
    assert again[-1] == again[0]
    assert again[-2] == 0


def test_memory_order_is_the_kernels() -> None:
    compare([torch.randn(6, 8, 3, 3).to(memory_format=torch.channels_last)])


@pytest.mark.parametrize("whole", [5_000, 200_000])
@pytest.mark.parametrize(("offset", "count"), [(5, 3), (31, 1), (33, 200), (64, 100), (1000, 4000)])
def test_shards_are_sketched_as_parts_of_the_whole(whole: int, offset: int, count: int) -> None:
    several = [torch.randn(count, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    compare(several, places(several, [offset, offset + 7, 0], [whole, whole, whole]))


def test_hashes_tell_tensors_apart() -> None:
    x, y = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    y[1, 2], y[1, 3] = y[1, 3].clone(), y[1, 2].clone()
    z = x.clone()
    z[0, 0], z[0, 1] = -z[0, 0], -z[0, 1]
    hashes = measured([x, y, z, x.clone()]).hashes
    assert hashes is not None
    assert len(set(hashes.tolist())) == 3
    assert hashes[0] == hashes[3]


def test_the_same_bits_twice() -> None:
    several = [torch.randn(300, 700, generator=torch.Generator().manual_seed(0)), torch.ones(3)]
    torch.use_deterministic_algorithms(True)
    try:
        one, other = measured(several), measured(several)
    finally:
        torch.use_deterministic_algorithms(False)
    assert one.records.tobytes() == other.records.tobytes()
    assert one.sketches is not None
    assert other.sketches is not None
    assert one.sketches.tobytes() == other.sketches.tobytes()


def test_rows_are_remembered_as_on_the_cpu() -> None:
    """Some tensors have no gradient on some steps; some steps overflow and do not count."""
    shapes = [(5, 3), (7, 2), (4,), (5, 3)]
    rows = [shape[0] if len(shape) > 1 else 0 for shape in shapes]
    engine, times, near = TorchEngine(CPU), RowTimes(rows, CPU), RowMemory(rows)
    generator = torch.Generator().manual_seed(0)

    def seen(void: float, grads: list[Tensor | None]) -> DeviceMeasurement:
        wanted = Wanted(rows=times, void=torch.full((1,), void))
        sent = engine.measure(grads, places(grads), wanted)
        return sent.finish(arrived(sent))

    for step in range(WINDOW + 30):
        likely = 0.02 if step > 20 else 0.2
        grads: list[Tensor | None] = [
            (torch.rand(shape, generator=generator) < likely).float() for shape in shapes
        ]
        if step % 5 == 4:
            grads[1] = None
        now = np.array([0 if g is None or g.dim() < 2 else len(g) for g in grads])
        for view, g in zip(near.fresh(now), grads, strict=True):
            if view is not None and g is not None:
                view[:] = (g != 0).any(1).numpy()
        dead, untouched = near.remember()
        found = seen(0.0, grads)
        np.testing.assert_array_equal(found.dead_rows, dead)
        np.testing.assert_array_equal(found.untouched_rows, untouched)
        zero = [0 if g is None or g.dim() < 2 else int((g == 0).all(1).sum()) for g in grads]
        assert found.records["zero_rows"].tolist() == zero
    overflowed = seen(1.0, [torch.full(shape, -1.0) for shape in shapes])
    np.testing.assert_array_equal(overflowed.untouched_rows, untouched)
    after = seen(0.0, [torch.full(shape, -1.0) for shape in shapes])
    assert after.untouched_rows is not None
    assert not after.untouched_rows.any()


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4])
@pytest.mark.parametrize(
    "kinds",
    [
        (torch.float32,) * 3,
        (torch.bfloat16,) * 3,
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.float16,) * 3,
        (torch.float64,) * 3,
    ],
)
def test_steps_are_as_the_kernel_has_them(
    kinds: tuple[torch.dtype, ...], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.record.device.torch_engine.WORK", 26 * 3000)
    monkeypatch.setattr("gradwatch.record.device.torch_steps.WORK", 26 * 3000)
    monkeypatch.setattr("gradwatch.record.device.torch_plan.MOST_LAUNCHES", 1e9)
    generator = torch.Generator().manual_seed(0)
    shapes = [(37, 50), (1024,), (7,), (3000,), (4, 8, 3, 3)]
    weight, gradient, second = kinds
    before = [torch.randn(*s, generator=generator).to(weight) for s in shapes]
    before[4] = before[4].to(memory_format=torch.channels_last)
    g = [(torch.randn(*s, generator=generator) * scale).to(gradient) for s in shapes]
    v = [(torch.rand(*s, generator=generator) * scale * scale).to(second) for s in shapes]
    engine = TorchEngine(CPU)
    snapshot = engine.snapshot(before)
    assert snapshot.whole
    for one in g:
        one.view(-1)[::5] = 0
    after = [
        (w.double() - 1e-3 * d.double().clamp(-1, 1)).to(weight)
        for w, d in zip(before, g, strict=True)
    ]
    if scale == 1.0:
        after[1][3], g[1][4], v[0][0, 0], g[0][0, 0] = float("nan"), float("inf"), 0.0, 1.0
    counts = np.array([1, 5, 100, 30, 2])
    betas, epsilons = np.full(5, 0.99), np.array([1e-8, 1e-3, 1e-8, 0.0, 1e-8])
    divisors = DeviceDivisors(v, [float(one) for one in counts], betas, epsilons)
    sent = engine.step(snapshot, after, g, divisors)
    found = sent.finish(arrived(sent))
    assert found.compared.tolist() == [one.numel() for one in before]
    assert found.updates is not None
    assert found.ratios is not None
    straight = [[one.contiguous() for one in side] for side in (before, after, g, v)]
    updates, ratios = kernel.step(
        *(gather(side).batch for side in straight), correction=1 - betas**counts, eps=epsilons
    )
    for name in ("changed", "lost", "with_gradient"):
        np.testing.assert_array_equal(found.updates[name], updates[name], name)
    for name in ("update_norm", "before_norm"):
        np.testing.assert_allclose(found.updates[name], updates[name], rtol=2e-6)
    np.testing.assert_allclose(found.ratios["ratio_rms"], ratios["ratio_rms"], rtol=1e-5)
    np.testing.assert_allclose(found.ratios["eps_fraction"], ratios["eps_fraction"], atol=1e-9)


def test_what_has_become_another_is_not_compared() -> None:
    before: list[Tensor | None] = [torch.ones(5), torch.ones(6), None, torch.ones(2, 3)]
    engine = TorchEngine(CPU)
    snapshot = engine.snapshot(before)
    after = [torch.zeros(5), torch.zeros(7), torch.ones(3), torch.zeros(2, 3).double()]
    sent = engine.step(snapshot, after, [None] * 4, None)
    found = sent.finish(arrived(sent))
    assert found.compared.tolist() == [5, 0, 0, 0]
    assert found.updates is not None
    assert found.updates["update_norm"].tolist() == pytest.approx([5**0.5, 0, 0, 0])
    assert found.ratios is None
    gone = engine.step(Snapshot([None] * 4, whole=True), after, [None] * 4, None)
    assert gone.finish(arrived(gone)).compared.tolist() == [0] * 4


def test_an_output_in_five_numbers() -> None:
    x = torch.tensor([3.0, 0.0, float("nan"), -4.0, float("inf"), 0.0])
    assert TorchEngine(CPU).output(x).tolist() == [2, 2, 4, -1, 25]


# -- planted faults --------------------------------------------------------------------------------

FAULTS = {
    "the mean's rest is forgotten": lambda sums: sums[9].zero_(),
    "the third power has the wrong sign": lambda sums: sums[11].neg_(),
    "the fourth power is of the width": lambda sums: sums[12].mul_(1.001),
    "squares are rounded": lambda sums: sums[10].mul_(1 + 1e-5),
    "a unit is twice as large": lambda sums: sums[8].mul_(2),
    "the last chunk is lost": lambda sums: sums[:, -1].zero_(),
    "infinities are negative": lambda sums: sums[2].zero_(),
    "gaps are elements": lambda sums: sums[0].clamp_min_(1024),
    "zeros are not counted": lambda sums: sums[3].fill_(1024),
    "extremes are of the mean": lambda sums: sums[7].copy_(torch.maximum(sums[5], sums[7] * 0.9)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(x: Tensor) -> Tensor:
        sums = chunk_sums(x)
        FAULTS[fault](sums)
        return sums

    several = [torch.randn(37, 50, generator=torch.Generator().manual_seed(0)) for _ in range(3)]
    several[0], several[1][3, 4], several[2][0] = 1000 + 0.01 * several[0], float("inf"), 0.0
    compare(several)
    monkeypatch.setattr("gradwatch.record.device.torch_engine.chunk_sums", spoilt)
    with pytest.raises(AssertionError):
        compare(several)


def test_what_waits_for_numbers_keeps_no_tensor_of_the_trainings() -> None:
    """Gradients are freed by `zero_grad` long before a busy device gives its numbers."""
    engine = TorchEngine(torch.device("cpu"))
    tensors = [torch.randn(40, 30), torch.randn(7)]
    seconds = [tensor**2 for tensor in tensors]
    places = Places(np.arange(2, dtype=np.uint64), np.zeros(2, np.int64), np.array([1200, 7]))
    rows = RowTimes([40, 0], torch.device("cpu"))
    divisors = DeviceDivisors(seconds, [1.0, 1.0], np.full(2, 0.9), np.full(2, 1e-8))
    before = engine.snapshot(tensors)
    sent: list[Sent[Any]] = [
        engine.measure(tensors, places, Wanted(histograms=True, sketches=True, rows=rows)),
        engine.measure(tensors, places, Wanted(hashes=True)),
        engine.step(before, tensors, tensors, divisors),
    ]
    gone = [
        weakref.ref(tensor) for tensor in (*tensors, *seconds, *before.copies) if tensor is not None
    ]
    del tensors, seconds, divisors, before
    gc.collect()
    assert len(sent) == 3
    assert [ref() for ref in gone] == [None] * len(gone)
