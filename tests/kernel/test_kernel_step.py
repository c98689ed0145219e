"""What a step did: update and Adam's ratio, against loops in Python."""

import math

import numpy as np
import pytest
from tests.kernel import reference
from tests.kernel.cases import Case, batch, case

from gradwatch import kernel
from gradwatch.kernel import Batch, Dtype

SIZES = (1, 17, 64, 4096, 9001)


def stepped(
    rng: np.random.Generator, n: int, dtype: Dtype, scale: float
) -> tuple[Case, Case, Case]:
    """Weights before, weights after, gradient: some weights unmoved, some gradients zero."""
    before = rng.standard_normal(n) * scale
    change = np.where(rng.random(n) < 0.3, 0.0, rng.standard_normal(n) * scale * 1e-2)
    grad = np.where(rng.random(n) < 0.4, 0.0, rng.standard_normal(n))
    return tuple(  # type: ignore[return-value]
        case("step", x, dtype) for x in (before, before + change, grad)
    )


@pytest.mark.parametrize("dtype", list(Dtype))
def test_update(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(8)
    scales = {Dtype.F16: (1.0,), Dtype.F64: (1.0, 1e-200, 1e200)}.get(dtype, (1.0, 1e-30, 1e30))
    triples = [stepped(rng, n, dtype, scale) for n in SIZES for scale in scales]
    before, after, grads = (batch([t[i] for t in triples]) for i in range(3))
    for (old, new, grad), record in zip(triples, kernel.step(before, after, grads)[0], strict=True):
        same = [a == b for a, b in zip(old.raw.tolist(), new.raw.tolist(), strict=True)]
        moved = [g != 0 for g in grad.values]
        assert record["changed"] == same.count(False)
        assert record["with_gradient"] == sum(moved)
        assert record["lost"] == sum(m and s for m, s in zip(moved, same, strict=True))
        assert record["update_norm"] == pytest.approx(
            reference.norm(new.values.astype(np.longdouble) - old.values), rel=1e-6
        )
        assert record["before_norm"] == pytest.approx(reference.norm(old.values), rel=1e-6)


def test_update_without_gradients(instruction_set: str) -> None:
    old, new, _grad = stepped(np.random.default_rng(1), 500, Dtype.F32, 1.0)
    none = Batch.of([0], [0], [Dtype.F32])
    for record in (
        kernel.step(batch([old]), batch([new]))[0][0],
        kernel.step(batch([old]), batch([new]), none)[0][0],
    ):
        assert record["with_gradient"] == 0
        assert record["lost"] == 0
        assert record["changed"] > 0


def test_update_with_non_finite_weights(instruction_set: str) -> None:
    old = case("old", np.array([1.0, np.nan, 2.0, np.inf] * 20), Dtype.F32)
    new = case("new", np.array([1.0, np.nan, 5.0, np.inf] * 20), Dtype.F32)
    (record,) = kernel.step(batch([old]), batch([new]), batch([new]))[0]
    assert record["changed"] == 20
    assert record["update_norm"] == pytest.approx(math.sqrt(9 * 20))
    assert record["before_norm"] == pytest.approx(math.sqrt(5 * 20))
    assert record["lost"] == 60


def test_gradients_may_have_another_type(instruction_set: str) -> None:
    old, new, grad = stepped(np.random.default_rng(2), 5000, Dtype.F32, 1.0)
    wanted = kernel.step(batch([old]), batch([new]), batch([grad]))[0][0]
    for dtype in Dtype:
        other = case("grad", grad.values, dtype)
        seen = kernel.step(batch([old]), batch([new]), batch([other]))[0][0]
        assert seen["changed"] == wanted["changed"]
        assert seen["update_norm"] == pytest.approx(wanted["update_norm"])


def naive_adam(g: np.ndarray, v: np.ndarray, correction: float, eps: float) -> tuple[float, float]:
    squares, finite, under = [], 0, 0
    for a, b in zip(g.tolist(), v.tolist(), strict=True):
        root = math.sqrt(b / correction) if b >= 0 else math.nan
        under += root < eps
        ratio = a / (root + eps) if root + eps != 0 else math.nan
        if math.isfinite(ratio):
            finite += 1
            squares.append(ratio * ratio)
    rms = math.sqrt(math.fsum(squares) / finite) if finite else math.nan
    return rms, under / len(g) if len(g) else math.nan


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("eps", [1e-8, 1e-3, 1e-15, 0.0])
def test_adam(instruction_set: str, dtype: Dtype, eps: float) -> None:
    rng = np.random.default_rng(9)
    pairs = []
    for n in (*SIZES, 0):
        g = rng.standard_normal(n) * 1e-3
        v = np.square(rng.standard_normal(n) * 1e-3) * np.where(rng.random(n) < 0.2, 0, 1)
        pairs.append((case("g", g, dtype), case("v", v, Dtype.F32)))
    grads, second = (batch([p[i] for p in pairs]) for i in range(2))
    corrections = rng.uniform(1e-3, 1.0, len(pairs))
    records = kernel.step(
        None, None, grads, second, correction=corrections, eps=np.full(len(pairs), eps)
    )[1]
    for (g, v), correction, record in zip(pairs, corrections, records, strict=True):
        rms, share = naive_adam(g.values, v.values, correction, eps)
        assert record["ratio_rms"] == pytest.approx(rms, rel=1e-6, nan_ok=True)
        assert record["eps_fraction"] == pytest.approx(share, nan_ok=True)


def test_adam_with_odd_numbers(instruction_set: str) -> None:
    g = np.array([1.0, np.nan, np.inf, 1e30, 1.0] * 13)
    v = np.array([4.0, 4.0, 4.0, 0.0, np.nan] * 13)
    first, second = case("g", g, Dtype.F32), case("v", v, Dtype.F32)
    (record,) = kernel.step(
        None, None, batch([first]), batch([second]), correction=[1.0], eps=[1e-10]
    )[1]
    wanted = naive_adam(np.float32(g).astype(float), v, 1.0, 1e-10)
    assert record["ratio_rms"] == pytest.approx(wanted[0], rel=1e-6)
    assert record["eps_fraction"] == pytest.approx(wanted[1])


# Second moments at the edges of float: zero, subnormal, smallest, largest, wrong; and gradients.
EDGES = {
    "zero v": (1e-3, 0.0),
    "zero gradient": (0.0, 1e-6),
    "both zero": (0.0, 0.0),
    "subnormal v": (1e-22, 1e-40),
    "least v": (1e-19, 1.2e-38),
    "small ratios": (1e-33, 1e-2),
    "tiny ratios": (1e-38, 1.0),
    "large v": (1e18, 1e36),
    "largest v": (3e38, 3e38),
    "infinite v": (1.0, math.inf),
    "negative v": (1.0, -1.0),
    "negative subnormal v": (1.0, -1e-40),
    "large ratios": (1e15, 1e-8),
    "largest ratios": (3e38, 1e-38),
}


@pytest.mark.parametrize("eps", [1e-8, 1e-15, 1e-25, 0.0, 1e31])
@pytest.mark.parametrize("correction", [1.0, 1e-3])
def test_adam_at_the_edges(instruction_set: str, eps: float, correction: float) -> None:
    rng = np.random.default_rng(10)
    pairs = []
    for g, v in EDGES.values():
        spread = rng.uniform(0.1, 1.0, (2, 5001))
        pairs.append((case("g", g * spread[0], Dtype.F32), case("v", v * spread[1], Dtype.F32)))
        # One such element among ordinary ones.
        ordinary = rng.standard_normal((2, 777)) * 1e-3
        ordinary[1] = ordinary[1] ** 2
        ordinary[:, 5] = g, v
        pairs.append(tuple(case("x", x, Dtype.F32) for x in ordinary))
    grads, second = (batch([p[i] for p in pairs]) for i in range(2))
    n = len(pairs)
    records = kernel.step(None, None, grads, second, correction=[correction] * n, eps=[eps] * n)[1]
    for (g, v), record in zip(pairs, records, strict=True):
        rms, share = naive_adam(g.values, v.values, correction, eps)
        assert record["ratio_rms"] == pytest.approx(rms, rel=1e-6, abs=0.0, nan_ok=True)
        assert record["eps_fraction"] == share


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_step_is_update_and_adam_together(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(11)
    triples = [stepped(rng, n, dtype, 1.0) for n in (*SIZES, 0)]
    before, after, grads = (batch([t[i] for t in triples]) for i in range(3))
    moments = [case("v", grad.values**2 + 1e-9, Dtype.F32) for _, _, grad in triples]
    second, n = batch(moments), len(triples)
    correction, eps = rng.uniform(0.1, 1.0, n), np.full(n, 1e-4)
    updates, ratios = kernel.step(before, after, grads, second, correction=correction, eps=eps)
    assert updates.tobytes() == kernel.step(before, after, grads)[0].tobytes()
    assert (
        ratios.tobytes()
        == kernel.step(None, None, grads, second, correction=correction, eps=eps)[1].tobytes()
    )
    assert (updates["lost"] > 0).sum() >= 3
    assert (ratios["ratio_rms"] > 0.5).sum() >= 3


def test_a_step_of_tensors_that_lack_something(instruction_set: str) -> None:
    rng = np.random.default_rng(12)
    triples = [stepped(rng, 5000, Dtype.F32, 1.0) for _ in range(4)]
    before, after, grads = (batch([t[i] for t in triples]) for i in range(3))
    moments = [case("v", grad.values**2, Dtype.F32) for _, _, grad in triples]
    second = batch(moments)
    no_grads, no_second = ([0, 1, 0, 1], [0, 0, 1, 1])
    some_grads = Batch.of(
        [0 if lacks else p for lacks, p in zip(no_grads, grads.pointers.tolist(), strict=True)],
        [0 if lacks else 5000 for lacks in no_grads],
        [0] * 4,
    )
    some_second = Batch.of(
        [0 if lacks else p for lacks, p in zip(no_second, second.pointers.tolist(), strict=True)],
        [0 if lacks else 5000 for lacks in no_second],
        [0] * 4,
    )
    correction, eps = np.full(4, 0.5), np.full(4, 1e-8)
    updates, ratios = kernel.step(
        before, after, some_grads, some_second, correction=correction, eps=eps
    )
    assert updates.tobytes() == kernel.step(before, after, some_grads)[0].tobytes()
    whole = kernel.step(None, None, grads, second, correction=correction, eps=eps)[1]
    assert ratios[0].tobytes() == whole[0].tobytes()
    assert np.isnan(ratios["ratio_rms"][1:]).all()
    assert np.isnan(ratios["eps_fraction"][1:]).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-12, 1e12, 1e18, 1e38])
def test_update_where_squares_leave_the_range_of_float(instruction_set: str, scale: float) -> None:
    rng = np.random.default_rng(15)
    pairs = []
    for weight, change in ((1.0, scale), (scale, scale), (scale, 1.0)):
        old = np.float32(rng.uniform(-1, 1, 5000) * weight)
        new = np.float32(old.astype(np.float64) + rng.uniform(-1, 1, 5000) * change)
        pairs.append((case("old", old, Dtype.F32), case("new", new, Dtype.F32)))
    before, after = (batch([p[i] for p in pairs]) for i in range(2))
    for (old, new), record in zip(pairs, kernel.step(before, after)[0], strict=True):
        assert record["before_norm"] == pytest.approx(reference.norm(old.values), rel=1e-6, abs=0)
        assert record["update_norm"] == pytest.approx(
            reference.norm(new.values.astype(np.longdouble) - old.values), rel=1e-6, abs=0
        )


def test_copy(instruction_set: str) -> None:
    rng = np.random.default_rng(3)
    sources = [
        case("source", rng.standard_normal(n), dtype) for dtype in Dtype for n in (0, 5, 999)
    ]
    targets = [Case("target", c.dtype, np.zeros_like(c.raw), c.values) for c in sources]
    kernel.copy(batch(sources), batch(targets))
    for source, target in zip(sources, targets, strict=True):
        assert source.raw.tobytes() == target.raw.tobytes()


@pytest.mark.parametrize("shift", [0, 1, 7])
def test_large_copies_begin_anywhere_and_end_where_they_should(
    instruction_set: str, shift: int
) -> None:
    rng = np.random.default_rng(4)
    for dtype in Dtype:
        source = case("source", rng.standard_normal(300_001), dtype)
        room = np.zeros(300_030, source.raw.dtype)
        target = Case("target", dtype, room[10 + shift : 300_011 + shift], source.values)
        kernel.copy(batch([source]), batch([target]))
        assert target.raw.tobytes() == source.raw.tobytes()
        assert not room[: 10 + shift].any()
        assert not room[300_011 + shift :].any()


@pytest.mark.parametrize("shift", [-1000, -1, 1, 1000])
def test_a_copy_may_overlap_its_source(instruction_set: str, shift: int) -> None:
    memory = np.random.default_rng(5).standard_normal(302_000).astype(np.float32)
    wanted = memory[1000:301_000].copy()
    parts = (memory[1000:301_000], memory[1000 + shift : 301_000 + shift])
    source, target = (Batch.of([part.ctypes.data], [300_000], [0]) for part in parts)
    kernel.copy(source, target)
    assert parts[1].tobytes() == wanted.tobytes()
