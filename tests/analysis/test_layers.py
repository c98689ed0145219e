"""Norms by layer: merged exactly, cut where a run goes bad; histories for the original's rules."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.making import make_run

from gradwatch.analysis import layers as layers_module
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind


def run_of(norms: np.ndarray, owners: list[str], **series: np.ndarray) -> Run:
    subjects = [
        Subject(Kind.PARAMETER, f"{owner}.p{i}", owner, (2, 3), "float32", 6)
        for i, owner in enumerate(owners)
    ]
    return make_run({"grad_norm": norms, **series}, subjects=subjects)


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_parameters_are_merged_as_plain_loops_do(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of any size, with gaps, of parameters that do not stand side by side."""
    monkeypatch.setattr(layers_module, "BLOCK", block)
    rng = np.random.default_rng(1)
    owners = ["b", "a", "b", "c", "a", "b"]
    norms = rng.lognormal(0, 1, (20, 6)) * 10.0 ** rng.choice([-200, 0, 200], (20, 6))
    norms[rng.random((20, 6)) < 0.4] = np.nan
    series = LayerSeries.of(run_of(norms, owners))
    assert series.names == ("b", "a", "c")
    assert series.counts.tolist() == [18, 12, 6]
    rows = [row for row in norms if np.isfinite(row).any()]
    for row, got in zip(rows, series.norms, strict=True):
        for name, value in zip(series.names, got, strict=True):
            own = [x for x, owner in zip(row, owners, strict=True) if owner == name]
            finite = [x for x in own if math.isfinite(x)]
            if not finite:
                assert math.isnan(value)
            else:
                assert value == pytest.approx(math.hypot(*finite), rel=1e-12)
    for column, mean in zip(series.norms.T, series.means, strict=True):
        finite = column[np.isfinite(column)]
        assert mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-12)
    for column, typical, count in zip(series.norms.T, series.typical, series.counts, strict=True):
        middle = float(np.median(column[np.isfinite(column)]))
        assert typical == pytest.approx(middle / math.sqrt(count), rel=1e-12)


def test_one_parameter_in_each_layer_is_not_copied() -> None:
    run = Run.from_norms({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert np.shares_memory(LayerSeries.of(run).norms, run.series["grad_norm"])


def test_the_series_ends_before_the_first_non_finite_step() -> None:
    norms = np.ones((9, 3))
    bad = np.zeros((9, 3))
    norms[4:, 0], bad[4:, 0], bad[6, 2] = np.nan, 2, 1
    series = LayerSeries.of(run_of(norms, ["a", "a", "b"], grad_nan=bad))
    assert series.steps.tolist() == [0, 1, 2, 3]
    assert series.non_finite_since == 4
    assert series.non_finite_samples.tolist() == [5, 1]
    clean = LayerSeries.of(run_of(np.ones((9, 3)), ["a", "a", "b"]))
    assert (len(clean.steps), clean.non_finite_since) == (9, None)
    assert clean.non_finite_samples.tolist() == [0, 0]


@pytest.mark.parametrize("size", [1e200, 1e-200, 1.0])
def test_squares_do_not_leave_the_range(size: float) -> None:
    series = LayerSeries.of(Run.from_norms({"a": [3 * size], "b": [4 * size]}))
    assert series.squares.tolist() == pytest.approx([9 / 16, 1.0])


def test_a_run_becomes_one_history_per_layer() -> None:
    big, bad = np.full((2, 2), 3.0), np.array([np.nan, 1.0])
    run = Run.from_arrays(
        {
            "a.weight": [big, big, None, big * np.inf],
            "a.bias": [np.full(1, 8.0), np.full(1, 8.0), None, np.full(1, 8.0)],
            "b.weight": [bad, np.ones(2), np.ones(2), np.ones(2)],
        },
        steps=[0, 2, 4, 6],
    )
    subjects = [replace(subject, layer=subject.name[0]) for subject in run.subjects]
    found = histories(Run(replace(run.source, subjects=subjects)))
    assert list(found) == ["a", "b"]
    assert list(found["a"].gradient_norms) == [10.0, 10.0, math.inf]
    assert list(found["a"].step_numbers) == [0, 2, 6]
    assert math.isnan(found["b"].gradient_norms[0])


def test_a_long_run_keeps_the_last_thousand() -> None:
    found = histories(Run.from_norms({"a": range(1, 1501)}))
    assert (len(found["a"].gradient_norms), found["a"].gradient_norms[0]) == (1000, 501.0)


def test_the_original_gets_nan_and_infinity_as_they_were() -> None:
    found = histories(Run.from_norms({"a": [1.0, math.inf, 2.0], "x.weight": [1.0, math.nan, 1.0]}))
    assert list(found) == ["a", "x.weight"]
    assert list(found["a"].gradient_norms) == [1.0, math.inf, 2.0]
    assert [math.isnan(x) for x in found["x.weight"].gradient_norms] == [False, True, False]
