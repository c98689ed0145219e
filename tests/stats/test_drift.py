"""Sums over two tensors: in stretches, merged and scaled they tell the same."""

import math

import numpy as np
import pytest
from tests.analysis import loops

from gradwatch.stats.drift import DriftSums


def pair(seed: int = 0, size: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    before = random.normal(size=size)
    after = np.where(random.random(size) < 0.5, before, before + 0.5 * random.normal(size=size))
    after[:3] = 0.0
    return before, after


def test_it_agrees_with_plain_loops() -> None:
    before, after = pair()
    sums = DriftSums()
    sums.add(before, after)
    wanted = loops.drift(before.tolist(), after.tolist())
    assert sums.relative_change == pytest.approx(wanted["relative_change"], rel=1e-12)
    assert sums.cosine == pytest.approx(wanted["cosine"], rel=1e-12)
    assert sums.flipped / sums.count == wanted["sign_flip_fraction"]
    assert sums.changed / sums.count == wanted["changed_fraction"]
    assert (sums.zeros_after - sums.zeros_before) / sums.count == wanted["sparsity_change"]


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_stretches_and_scale_do_not_matter(scale: float) -> None:
    before, after = pair()
    whole, parts, rest = DriftSums(), DriftSums(), DriftSums()
    whole.add(before, after)
    parts.add(before[:300] * scale, after[:300] * scale, scale=scale)
    rest.add(before[300:] * scale, after[300:] * scale, scale=scale)
    parts += rest
    assert parts.count == whole.count
    assert parts.changed == whole.changed
    assert parts.relative_change == pytest.approx(whole.relative_change, rel=1e-12)
    assert parts.cosine == pytest.approx(whole.cosine, rel=1e-12)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    sums = DriftSums()
    sums.add(
        np.array([1.0, np.nan, np.nan, np.inf], np.float32),
        np.array([1.0, np.nan, 2.0, 3.0], np.float32),
    )
    assert (sums.nonfinite, sums.nonfinite_before, sums.nonfinite_after) == (3, 3, 1)
    assert sums.changed == 2
    assert sums.relative_change == 0.0


def test_zero_has_no_direction() -> None:
    sums = DriftSums()
    sums.add(np.zeros(3), np.ones(3))
    assert math.isinf(sums.relative_change)
    assert math.isnan(sums.cosine)
