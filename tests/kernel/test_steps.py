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
    for (old, new, grad), record in zip(triples, kernel.update(before, after, grads), strict=True):
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
        kernel.update(batch([old]), batch([new]))[0],
        kernel.update(batch([old]), batch([new]), none)[0],
    ):
        assert record["with_gradient"] == 0
        assert record["lost"] == 0
        assert record["changed"] > 0


def test_update_with_non_finite_weights(instruction_set: str) -> None:
    old = case("old", np.array([1.0, np.nan, 2.0, np.inf] * 20), Dtype.F32)
    new = case("new", np.array([1.0, np.nan, 5.0, np.inf] * 20), Dtype.F32)
    (record,) = kernel.update(batch([old]), batch([new]), batch([new]))
    assert record["changed"] == 20
    assert record["update_norm"] == pytest.approx(math.sqrt(9 * 20))
    assert record["before_norm"] == pytest.approx(math.sqrt(5 * 20))
    assert record["lost"] == 60


def test_gradients_may_have_another_type(instruction_set: str) -> None:
    old, new, grad = stepped(np.random.default_rng(2), 5000, Dtype.F32, 1.0)
    wanted = kernel.update(batch([old]), batch([new]), batch([grad]))[0]
    for dtype in Dtype:
        other = case("grad", grad.values, dtype)
        seen = kernel.update(batch([old]), batch([new]), batch([other]))[0]
        assert seen["changed"] == wanted["changed"]
        assert seen["update_norm"] == pytest.approx(wanted["update_norm"])


def naive_adam(g: np.ndarray, v: np.ndarray, correction: float, eps: float) -> tuple[float, float]:
    squares, finite, under = [], 0, 0
    for a, b in zip(g.tolist(), v.tolist(), strict=True):
        root = math.sqrt(b / correction) if b >= 0 and math.isfinite(b) else math.nan
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
    records = kernel.adam(grads, second, correction=corrections, eps=np.full(len(pairs), eps))
    for (g, v), correction, record in zip(pairs, corrections, records, strict=True):
        rms, share = naive_adam(g.values, v.values, correction, eps)
        assert record["ratio_rms"] == pytest.approx(rms, rel=1e-6, nan_ok=True)
        assert record["eps_fraction"] == pytest.approx(share, nan_ok=True)


def test_adam_with_odd_numbers(instruction_set: str) -> None:
    g = np.array([1.0, np.nan, np.inf, 1e30, 1.0] * 13)
    v = np.array([4.0, 4.0, 4.0, 0.0, np.nan] * 13)
    first, second = case("g", g, Dtype.F32), case("v", v, Dtype.F32)
    (record,) = kernel.adam(batch([first]), batch([second]), correction=[1.0], eps=[1e-10])
    wanted = naive_adam(np.float32(g).astype(float), v, 1.0, 1e-10)
    assert record["ratio_rms"] == pytest.approx(wanted[0], rel=1e-6)
    assert record["eps_fraction"] == pytest.approx(wanted[1])


def test_copy(instruction_set: str) -> None:
    rng = np.random.default_rng(3)
    sources = [
        case("source", rng.standard_normal(n), dtype) for dtype in Dtype for n in (0, 5, 999)
    ]
    targets = [Case("target", c.dtype, np.zeros_like(c.raw), c.values) for c in sources]
    kernel.copy(batch(sources), batch(targets))
    for source, target in zip(sources, targets, strict=True):
        assert source.raw.tobytes() == target.raw.tobytes()
