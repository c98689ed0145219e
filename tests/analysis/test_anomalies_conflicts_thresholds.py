"""The rest of the debugger: anomalies, conflicts, thresholds; each level made by a run."""

import math

import numpy as np
import pytest

from gradwatch.analysis.anomalies import AnomalyTrend, AnomalyType, detect_anomalies
from gradwatch.analysis.conflicts import (
    ConflictLevel,
    ConflictType,
    analyze_conflicts,
    layer_correlations,
)
from gradwatch.analysis.thresholds import AlertKind, watch_thresholds
from gradwatch.errors import GradwatchError
from gradwatch.run import Run


def noise(seed: int, size: int = 200, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * np.random.default_rng(seed).normal(size=size))


def spoiled(index, factor: float) -> np.ndarray:
    series = noise(1)
    series[index] *= factor
    return series


CASES = {
    AnomalyType.SUDDEN_SPIKE: (spoiled(120, 20.0), 120),
    AnomalyType.SUDDEN_DROP: (spoiled(77, 0.01), 77),
    AnomalyType.LEVEL_SHIFT: (spoiled(slice(90, None), 50.0), 90),
    AnomalyType.OSCILLATION: (1 + 0.3 * (-1.0) ** np.arange(200), 0),
    AnomalyType.STAGNATION: (np.where(np.arange(200) < 100, noise(2), 0.8), 100),
    AnomalyType.NON_FINITE: (np.where(np.arange(200) == 33, np.nan, noise(3)), 33),
}


@pytest.mark.parametrize("type_", AnomalyType)
def test_every_anomaly_is_found_once_at_its_step(type_: AnomalyType) -> None:
    series, step = CASES[type_]
    found = detect_anomalies(Run.from_norms({"a": series})).anomalies
    (anomaly,) = [item for item in found if item.anomaly_type is type_]
    assert anomaly.step == step
    assert 0 < anomaly.severity <= 1


def test_z_is_that_of_a_loop_over_the_clean_samples_before_it() -> None:
    series, step = CASES[AnomalyType.SUDDEN_SPIKE]
    (anomaly,) = detect_anomalies(Run.from_norms({"a": series})).anomalies
    before = sorted(math.log(v) for v in series[step - 50 : step].tolist())
    median = (before[24] + before[25]) / 2
    off = sorted(abs(v - median) for v in before)
    spread = 1.4826 * (off[24] + off[25]) / 2
    expected = (math.log(series[step]) - median) / spread
    assert anomaly.deviation_magnitude == pytest.approx(expected)
    assert anomaly.expected_range[1] == pytest.approx(math.exp(median + 6 * spread))


def test_quiet_on_noise_and_whatever_the_scale() -> None:
    healthy = {f"l{i}": noise(i, 500) for i in range(20)}
    assert detect_anomalies(Run.from_norms(healthy)).total_anomalies == 0
    series, step = CASES[AnomalyType.SUDDEN_SPIKE]
    (anomaly,) = detect_anomalies(Run.from_norms({"a": 1e-20 * series})).anomalies
    assert anomaly.step == step


def test_the_trend_counts_events_per_step() -> None:
    def trend(steps: list[int]) -> AnomalyTrend:
        return detect_anomalies(Run.from_norms({"a": spoiled(steps, 50.0)})).recent_trend

    assert trend([160, 165, 170, 175, 180, 185, 190]) is AnomalyTrend.INCREASING
    assert trend([40, 80, 120, 170]) is AnomalyTrend.STABLE
    many = noise(1, 800)
    many[20:420:14] *= 50
    assert detect_anomalies(Run.from_norms({"a": many})).recent_trend is AnomalyTrend.DECREASING


def test_options_of_anomalies_matter_and_nonsense_is_refused() -> None:
    run = Run.from_norms({"a": spoiled(120, 2.2)})
    assert detect_anomalies(run).total_anomalies != detect_anomalies(run, limit=12).total_anomalies
    with pytest.raises(GradwatchError, match="window ≥ 10"):
        detect_anomalies(run, window=2)


# -- conflicts ------------------------------------------------------------------------------------


def turned(cosine: float) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    a = rng.normal(size=400)
    a /= np.linalg.norm(a)
    b = rng.normal(size=400)
    b -= (b @ a) * a
    b /= np.linalg.norm(b)
    other = cosine * a + math.sqrt(1 - cosine**2) * b
    return {"x": {"w": 3 * a.reshape(20, 20)}, "y": {"w": 0.01 * other.reshape(20, 20)}}


@pytest.mark.parametrize(
    ("cosine", "type_"),
    [
        (0.9, ConflictType.NONE),
        (-0.05, ConflictType.NONE),
        (-0.2, ConflictType.MILD),
        (-0.5, ConflictType.MODERATE),
        (-0.99, ConflictType.SEVERE),
    ],
)
def test_a_conflict_is_a_negative_cosine(cosine: float, type_: ConflictType) -> None:
    (conflict,) = analyze_conflicts(turned(cosine)).conflicts
    assert conflict.cosine == pytest.approx(cosine, abs=1e-12)
    assert conflict.conflict_type is type_


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (0.0, ConflictLevel.LOW),
        (0.1, ConflictLevel.MEDIUM),
        (0.3, ConflictLevel.HIGH),
        (0.9, ConflictLevel.CRITICAL),
    ],
)
def test_the_level_is_the_share_of_elements(share: float, level: ConflictLevel) -> None:
    bad = round(1000 * share)
    one = {"bad": np.ones(bad), "good": np.ones(1000 - bad)}
    two = {"bad": -np.ones(bad), "good": np.ones(1000 - bad)}
    found = analyze_conflicts({"a": one, "b": two})
    assert found.overall_conflict_level is level
    assert bool(found.mitigation_strategies) == (share > 0)


def test_a_zero_gradient_is_no_conflict_but_unknown() -> None:
    (found,) = analyze_conflicts({"a": {"w": np.zeros(3)}, "b": {"w": np.ones(3)}}).conflicts
    assert found.cosine is None
    assert "zero" in found.missing["cosine"]
    with pytest.raises(GradwatchError, match="at least two sources"):
        analyze_conflicts({"a": {}})
    with pytest.raises(GradwatchError, match="one shape"):
        analyze_conflicts({"a": {"w": np.ones(3)}, "b": {"w": np.ones(4)}})


def test_layers_are_only_correlated() -> None:
    moves = np.cumsum(0.1 * np.random.default_rng(0).normal(size=80))
    (found,) = layer_correlations(Run.from_norms({"a": np.exp(moves), "b": np.exp(moves)}))
    assert found.interaction_strength == pytest.approx(1.0)
    assert not layer_correlations(Run.from_norms({"a": [1.0], "b": [1.0]}))


# -- thresholds -----------------------------------------------------------------------------------


def kinds(series, **options) -> list[AlertKind]:
    return [a.kind for a in watch_thresholds(Run.from_norms({"a": series}), **options)["a"].alerts]


def test_every_alert_is_an_episode_with_its_steps() -> None:
    (alert,) = watch_thresholds(Run.from_norms({"a": spoiled(slice(150, 160), 1e5)}))["a"].alerts
    assert (alert.kind, alert.first_step, alert.samples) == (AlertKind.EXPLODING, 150, 10)
    assert not alert.continuing
    assert AlertKind.VANISHING in kinds(spoiled(slice(150, None), 1e-5))
    assert AlertKind.NON_FINITE in kinds(np.where(np.arange(200) == 50, np.inf, noise(1)))


def test_a_slow_drift_cannot_pull_its_limits_along() -> None:
    slow = noise(1, 4000) * 10 ** (np.arange(4000) / 400)
    assert AlertKind.DRIFTING_UP in kinds(slow)
    assert AlertKind.EXPLODING in kinds(slow)
    assert AlertKind.DRIFTING_DOWN in kinds(1 / slow)


def test_a_constant_norm_is_quiet_whatever_its_size() -> None:
    assert kinds(np.full(1000, 50.0)) == []
    assert kinds(np.full(1000, 1e-9)) == []


def test_noise_raises_few_drifts() -> None:
    found = sum(len(kinds(noise(seed, 300))) for seed in range(20))
    assert found <= 20  # the spread is learnt from twenty samples only


def test_options_of_thresholds_matter() -> None:
    series = spoiled(150, 1e4)
    assert AlertKind.EXPLODING in kinds(series)
    assert AlertKind.EXPLODING not in kinds(series, decades=5)
    with pytest.raises(GradwatchError, match="learn ≥ 5"):
        watch_thresholds(Run.from_norms({"a": series}), learn=2)


# -- the original's rules -------------------------------------------------------------------------


def test_the_original_rules_show_what_ours_correct() -> None:
    slow = Run.from_norms({"a": noise(1, 1000, 0.02) * 10 ** (np.arange(1000) / 400)})
    theirs = watch_thresholds(slow, rules="original")["a"]
    assert theirs == ()  # its limits follow the mean
    assert AlertKind.DRIFTING_UP in kinds(slow.column("grad_norm", "a"))
    healthy = Run.from_norms({"a": noise(5, 500)})
    assert detect_anomalies(healthy, rules="original").total_anomalies > 0
    assert detect_anomalies(healthy).total_anomalies == 0
    opposed = Run.from_norms({"a": [1.0, 9.0] * 10, "b": [9.0, 1.0] * 10})
    assert layer_correlations(opposed, rules="original").total_conflicts == 1
