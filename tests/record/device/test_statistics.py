"""The device's arithmetic against the kernel's, on tensors of every kind."""

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch
from gradwatch.record.device import statistics
from gradwatch.record.device.gradients import (
    DeviceRowMemory,
    Sketcher,
    SketchPlace,
    lay_out,
    restoring,
    shift_to_raw,
    turned,
)
from gradwatch.record.device.statistics import (
    ShapeGroup,
    bins,
    bins_of,
    fingerprint,
    fingerprints_of,
    histogram_of,
    same_shape_groups,
    spread,
    spread_of,
    touched,
    zero_rows,
)
from gradwatch.record.tensors import gather
from gradwatch.stats.rows import WINDOW, RowMemory

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
KINDS_OF = [
    "gaussian",
    "offset",
    "far offset",
    "tails",
    "zeros",
    "bad",
    "constant",
    "nan",
    "one bad",
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(kind: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if kind == "offset":
        x = 3.0 + 0.1 * x
    elif kind == "far offset":
        x = 1.0 + 0.001 * x
    elif kind == "tails":
        x = x**5
    elif kind == "zeros":
        x[::3] = 0.0
    elif kind == "bad":
        x[0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])
        x += 5.0
    elif kind == "constant":
        x = torch.full(shape, 0.3, dtype=torch.float64)
    elif kind == "nan":
        x = torch.full(shape, float("nan"), dtype=torch.float64)
    elif kind == "one bad":
        x[1:] = float("inf")
    return x


def truth(tensor: Tensor) -> np.void:
    (record,) = kernel.measure(gather([tensor]).batch).records
    return record


def records(*tensors: Tensor) -> np.ndarray:
    (group,) = same_shape_groups(tensors)
    sums = [part.numpy().reshape(-1) for part in statistics.moments_of(group)]
    return statistics.records_of([piece.shape[1] for piece in group.pieces], sums)


@pytest.mark.parametrize("limit", [1 << 22, 700])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS_OF)
def test_moments_agree_with_the_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kind: str, limit: int
) -> None:
    monkeypatch.setattr("gradwatch.record.device.statistics.LIMIT", limit)
    x = made(kind, 37, 50).to(dtype)
    (found,), expected = records(x), truth(x)
    for name in kernel.MOMENTS.names:
        if name in ("pos_inf", "neg_inf", "zero_rows"):
            continue
        close = 3e-4 if name in ("skewness", "kurtosis") else 2e-6
        assert found[name] == pytest.approx(
            float(expected[name]), rel=close, abs=close * float(expected["std"]), nan_ok=True
        ), name
    assert found["pos_inf"] == expected["pos_inf"] + expected["neg_inf"]


def test_alike_tensors_are_measured_together() -> None:
    several = [made(kind, 37, 50).float() for kind in KINDS_OF]
    together = records(*several)
    for line, tensor in zip(together, several, strict=True):
        assert line.tolist() == pytest.approx(records(tensor)[0].tolist(), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-12, 1e12, 1e30, 1e37])
def test_no_power_leaves_the_range(scale: float) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * scale
    (found,), expected = records(x), truth(x)
    for name in ("std", "norm", "kurtosis", "abs_max", "abs_mean"):
        assert found[name] == pytest.approx(float(expected[name]), rel=1e-5), name


def test_groups_hold_every_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.record.device.statistics.LIMIT", 100)
    sizes = [(5, 6), (30,), (5, 6), (6, 5), (200,), (5, 6), (30,), (5, 6), (5, 6)]
    tensors: list[Tensor | None] = [torch.full(size, float(i)) for i, size in enumerate(sizes)]
    tensors[6] = None
    groups = same_shape_groups(tensors)
    assert sorted(i for group in groups for i in group.indices) == [0, 1, 2, 3, 4, 5, 7, 8]
    assert all(group.matrix.numel() <= 100 or len(group.indices) == 1 for group in groups)
    for group in groups:
        for index, line in zip(group.indices, group.matrix, strict=True):
            assert (line == index).all()
            assert group.rows == (sizes[index][0] if len(sizes[index]) > 1 else 0)
        assert sum(piece.numel() for piece in group.pieces) == group.matrix.numel()


def test_memory_order_is_the_kernels() -> None:
    x = torch.randn(6, 8, 3, 3).to(memory_format=torch.channels_last)
    (group,) = same_shape_groups([x])
    assert group.matrix[0].data_ptr() == x.data_ptr()
    places = [SketchPlace(7, 0, x.numel(), x.numel())]
    assert_sketch(Sketcher(places, x.device), group, gather([x]).batch, places)


# -- sketches --------------------------------------------------------------------------------------


def assert_sketch(
    sketcher: Sketcher, group: ShapeGroup, batch: Batch, places: list[SketchPlace]
) -> None:
    sums, outside = sketcher.sums(group)
    found = sketcher.finish(turned(sums).numpy(), outside.double().numpy())
    expected = kernel.sketch(
        batch,
        [place.seed for place in places],
        [place.offset for place in places],
        [place.whole for place in places],
    )
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6 * size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 7, 31, 32, 33, 1000, 4096, 65_536, 65_537, 70_001, 300_000])
def test_sketches_are_the_kernels(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, count: int
) -> None:
    monkeypatch.setattr("gradwatch.record.device.gradients.LIMIT", 1 << 15)
    several = [torch.randn(count, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    several[1][count // 2] = float("nan")
    several = [one.to(dtype) for one in several]
    places = [SketchPlace(seed, 0, count, count) for seed in (1, 99, 2**63 + 5)]
    (group,) = same_shape_groups(several)
    assert_sketch(Sketcher(places, group.matrix.device), group, gather(several).batch, places)


@pytest.mark.parametrize("whole", [5_000, 200_000])
@pytest.mark.parametrize(("offset", "count"), [(5, 3), (31, 1), (33, 200), (64, 100), (1000, 4000)])
def test_sketches_of_shards(whole: int, offset: int, count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    places = [SketchPlace(11, offset, whole, count)]
    (group,) = same_shape_groups([x])
    assert_sketch(Sketcher(places, x.device), group, gather([x]).batch, places)


def test_layouts_take_little_memory() -> None:
    count = 4_000_000
    assert Sketcher([SketchPlace(3, 0, count, count)], torch.device("cpu")).nbytes < 0.2 * count
    small = 60_000
    assert Sketcher([SketchPlace(3, 0, small, small)], torch.device("cpu")).nbytes < 2.2 * small
    assert lay_out(SketchPlace(3, 0, count, count)).edges.shape == (0, 32)


# -- histograms, hashes, rows ----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1 << 22, 700])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*KINDS_OF, "tiny", "everything", "large"])
def test_histograms_are_the_kernels(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kind: str, limit: int
) -> None:
    monkeypatch.setattr("gradwatch.record.device.statistics.LIMIT", limit)
    if kind == "large":
        x = made("bad", 70, 1000).to(dtype)
    elif kind == "tiny":
        x = (made("gaussian", 37, 50) * torch.finfo(dtype).smallest_normal / 16).to(dtype)
    elif kind == "everything":
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.finfo(dtype).bits // 8]
        limits = torch.iinfo(whole)
        generator = torch.Generator().manual_seed(1)
        x = torch.randint(limits.min, limits.max, (37, 50), generator=generator, dtype=whole)
        x = x.view(dtype)
    else:
        x = made(kind, 37, 50).to(dtype)
    (group,) = same_shape_groups([x])
    counts, above = bins(group)
    (found,) = bins_of(counts.double().numpy())
    (expected,) = kernel.measure(gather([x]).batch, bins=True).bins
    assert found.first_exponent == expected.first_exponent
    assert np.array_equal(found.negative, expected.negative)
    assert np.array_equal(found.positive, expected.positive)
    record = truth(x)
    whole_count = histogram_of(records(x)[0], found, float(above[0]))
    assert whole_count.positive_inf == record["pos_inf"]
    assert whole_count.negative_inf == record["neg_inf"]
    assert whole_count.count == x.numel()


def test_hashes_tell_tensors_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    y[1, 2], y[1, 3] = y[1, 3].clone(), y[1, 2].clone()
    (group,) = same_shape_groups([x, y, x.clone()])
    one, other, again = fingerprints_of(fingerprint(group).double().numpy())
    assert one == again != other
    monkeypatch.setattr("gradwatch.record.device.statistics.LIMIT", 5)
    (group,) = same_shape_groups([x])
    assert fingerprints_of(fingerprint(group).double().numpy())[0] == one


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_spread_of_rows_is_the_kernels(dtype: torch.dtype) -> None:
    several = [made(kind, 37, 50).to(dtype) for kind in KINDS_OF]
    several.append(torch.zeros(37, 50, dtype=dtype))
    (group,) = same_shape_groups(several)
    found = spread_of(spread(group).numpy())
    expected = kernel.row_spread(gather(several).batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert zero_rows(group).tolist() == [int(truth(one)["zero_rows"]) for one in several]


def test_rows_are_remembered_as_on_the_cpu() -> None:
    """Some tensors have no gradient on some steps; some steps overflow and do not count."""
    cpu = torch.device("cpu")
    shapes = [(5, 3), (7, 2), (5, 3)]
    far = DeviceRowMemory({i: (cpu, shape[0]) for i, shape in enumerate(shapes)})
    near = RowMemory([shape[0] for shape in shapes])
    generator = torch.Generator().manual_seed(0)
    for step in range(WINDOW + 30):
        likely = 0.02 if step > 20 else 0.2
        grads: list[Tensor | None] = [
            (torch.rand(shape, generator=generator) < likely).float() for shape in shapes
        ]
        if step % 5 == 4:
            grads[1] = None
        marks: dict[int, Tensor] = {}
        for group in same_shape_groups(grads):
            marks |= dict(zip(group.indices, touched(group).unbind(0), strict=True))
        rows = np.array([0 if g is None else len(g) for g in grads])
        for view, g in zip(near.fresh(rows), grads, strict=True):
            if view is not None and g is not None:
                view[:] = (g != 0).any(1).numpy()
        dead, untouched = near.remember()
        counts = far.counts([part.double().numpy() for part in far.remember(marks, None)])
        for index in range(3):
            zero = 0 if (g := grads[index]) is None else int((g == 0).all(1).sum())
            expected = [zero if g is not None else shapes[index][0], dead[index], untouched[index]]
            assert list(counts[index]) == expected
    before = far.counts([p.double().numpy() for p in far.remember({}, None)])
    void = far.remember(
        {i: torch.ones(s[0], dtype=torch.bool) for i, s in enumerate(shapes)}, torch.ones(1)
    )
    after = far.counts([part.double().numpy() for part in void])
    assert [after[i][2] for i in range(3)] == [before[i][2] for i in range(3)]


# -- raw again -------------------------------------------------------------------------------------


def test_what_makes_a_gradient_raw_again() -> None:
    was = torch.randn(64, generator=torch.Generator().manual_seed(0))
    other = torch.randn(64, generator=torch.Generator().manual_seed(1))

    def found(*now: Tensor) -> float:
        pairs = list(zip((was, other), now, strict=False))
        factor = restoring(pairs)
        assert factor is not None
        return float(factor)

    assert found(was, other) == 1.0
    assert found(was * 0.3, other * 0.3) == pytest.approx(1 / 0.3, rel=1e-6)
    assert found(was.clamp(-0.5, 0.5), other) == 1.0
    assert found(was * 0.3, other * 0.4) == 1.0
    was[3] = float("nan")
    assert found(was * 0.25, other * 0.25) == 4.0
    assert found(was, other) == 1.0
    assert restoring([]) is None


@pytest.mark.parametrize(
    ("multiplier", "applied", "shift"),
    [
        (1.0, 1.0, 0),
        (4.0, 1.0, 2),
        (1 / 65_536, 1.0, -16),
        (3.3, 3.3 * (1 + 1e-6), 0),
        (3.3, 3.3 * (1 - 1e-6), 0),
        (6.6, 3.3, 1),
        (3.3, 1.0, None),
        (float("nan"), 1.0, None),
        (1.0, 0.0, None),
    ],
)
def test_bins_are_moved_by_powers_of_two(
    multiplier: float, applied: float, shift: int | None
) -> None:
    assert shift_to_raw(multiplier, applied) == shift
