"""Network level and hierarchy: each level is produced by a run made for it."""

import math

import numpy as np
import pytest
from tests.analysis.gradients import loops
from tests.making import make_run

from gradwatch.analysis.gradients import analyze_gradients, overall_health
from gradwatch.analysis.gradients.groups import (
    Difficulty,
    DistributionType,
    InteractionDirection,
    InteractionType,
    distribution_type,
)
from gradwatch.analysis.gradients.layer import LayerHealth, Urgency, urgency
from gradwatch.analysis.gradients.training import (
    ConvergenceTrend,
    InstabilityType,
    LearningPhase,
    PlateauSeverity,
    StabilityOutlook,
    StabilityTrend,
)
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind

RNG = np.random.default_rng


def noise(seed: int, size: int = 200, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * RNG(seed).normal(size=size))


def network(norms: dict, **scalars):
    return analyze_gradients(Run.from_norms(norms, scalars=scalars)).network_level_analysis


# -- distribution ---------------------------------------------------------------------------------

DISTRIBUTIONS = {
    DistributionType.NORMAL: 10 ** RNG(1).normal(size=60),
    DistributionType.SKEWED: 10 ** RNG(2).exponential(size=60),
    DistributionType.HEAVY_TAILED: 10
    ** np.concatenate([RNG(3).normal(size=60) * 0.2, [2.0, -2.0, 2.2, -2.2]]),
    DistributionType.MULTIMODAL: 10
    ** np.concatenate([RNG(4).normal(size=30) * 0.1, 4 + RNG(5).normal(size=30) * 0.1]),
    DistributionType.DEGENERATE: np.array([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("type_", DistributionType)
def test_every_type_of_distribution(type_: DistributionType) -> None:
    assert distribution_type(DISTRIBUTIONS[type_]) is type_


def test_few_or_uniform_layers_are_not_multimodal() -> None:
    assert distribution_type(np.array([1.0, 10.0])) is DistributionType.DEGENERATE
    wrong = sum(
        distribution_type(10 ** RNG(seed).uniform(size=12)) is DistributionType.MULTIMODAL
        for seed in range(100)
    )
    assert wrong <= 5


def test_moments_over_layers_are_those_of_plain_loops() -> None:
    norms = {f"l{i}": noise(i) * (i + 1) for i in range(9)}
    got = network(norms).gradient_distribution
    means = [math.fsum(x.tolist()) / len(x) for x in norms.values()]
    mean, std, skew, kurt = loops.moments(means)
    assert got.mean_gradient_norm == pytest.approx(mean, rel=1e-12)
    assert got.gradient_variance == pytest.approx(std**2, rel=1e-12)
    assert got.gradient_skewness == pytest.approx(skew, abs=1e-10)
    assert got.gradient_kurtosis == pytest.approx(kurt, abs=1e-10)
    assert got.layer_gradient_ratios["l3"] == pytest.approx(means[3] / mean, rel=1e-12)


# -- interactions ---------------------------------------------------------------------------------


def test_layers_that_move_together_cooperate_and_strength_is_the_correlation() -> None:
    common = RNG(0).normal(size=100)
    a = np.exp(np.cumsum(0.1 * common + 0.02 * RNG(1).normal(size=100)))
    b = np.exp(np.cumsum(0.1 * common + 0.02 * RNG(2).normal(size=100)))
    (found,) = network({"a": a, "b": b}).layer_interactions
    assert found.interaction_type is InteractionType.COOPERATIVE
    changes = [np.diff(np.log(x)).tolist() for x in (a, b)]
    assert found.interaction_strength == pytest.approx(loops.correlation(*changes), rel=1e-9)


def test_opposed_layers_compete_and_unrelated_ones_are_neutral() -> None:
    common = RNG(0).normal(size=100)
    a, b = np.exp(np.cumsum(0.1 * common)), np.exp(-np.cumsum(0.1 * common))
    (found,) = network({"a": a, "b": b}).layer_interactions
    assert found.interaction_type is InteractionType.COMPETITIVE
    (found,) = network({"a": noise(1), "b": noise(2)}).layer_interactions
    assert found.interaction_type is InteractionType.NEUTRAL


def test_spikes_that_follow_anothers_are_disruptive() -> None:
    a, b = noise(1, 100, 0.01), noise(2, 100, 0.01)
    for at in (20, 45, 70):
        a[at] *= 30
        a[at + 1 :] *= 30  # a level change, so that only one step moves
        b[at + 1 :] *= 30
    (found,) = network({"a": a, "b": b}).layer_interactions
    assert found.interaction_type is InteractionType.DISRUPTIVE


# -- convergence and dynamics ---------------------------------------------------------------------

TRENDS = {
    ConvergenceTrend.CONVERGING: np.exp(-np.arange(200) / 60) * noise(1, spread=0.05),
    ConvergenceTrend.DIVERGING: np.exp(np.arange(200) / 60) * noise(1, spread=0.05),
    ConvergenceTrend.STABLE: noise(7),
    ConvergenceTrend.OSCILLATING: 1 + 0.5 * (-1.0) ** np.arange(200),
    ConvergenceTrend.UNKNOWN: np.ones(4),
}


@pytest.mark.parametrize("trend", ConvergenceTrend)
def test_every_trend(trend: ConvergenceTrend) -> None:
    got = network({"a": TRENDS[trend], "b": TRENDS[trend]}).convergence_indicators
    assert got.convergence_trend is trend


def test_steps_to_convergence_hold_the_truth() -> None:
    tau = 80.0
    falling = np.exp(-np.arange(200) / tau) * noise(3, spread=0.02)
    low, high = network({"a": falling}).convergence_indicators.estimated_steps_to_convergence
    truth = tau * math.log(100) - 199
    assert low - 15 <= truth <= high + 15
    flat = network({"a": noise(3)}).convergence_indicators
    assert flat.estimated_steps_to_convergence is None
    assert "does not fall" in flat.missing["estimated_steps_to_convergence"]


def test_loss_and_parameters_are_judged_from_their_own_data() -> None:
    loss = np.exp(-np.arange(200) / 50)
    got = network({"a": noise(1)}, loss=loss).convergence_indicators
    assert got.loss_convergence_score == pytest.approx(1.0)
    assert got.gradient_convergence_score == 0.0
    assert got.parameter_convergence_score is None
    without = network({"a": noise(1)}).convergence_indicators
    assert without.loss_convergence_score is None


def losses() -> dict[LearningPhase, np.ndarray]:
    t = np.arange(200)
    return {
        LearningPhase.INITIAL_LEARNING: 2.3 - 1e-4 * t,
        LearningPhase.RAPID_LEARNING: 2.3 - 0.01 * t,
        LearningPhase.REFINEMENT: 2.3 * np.exp(-t / 90),
        LearningPhase.CONVERGENCE: 2.3 * np.exp(-t / 30),
        LearningPhase.PLATEAU: np.maximum(2.3 - 0.03 * t, 0.5) + 0.01 * RNG(0).normal(size=200),
        LearningPhase.OVERFITTING: 2.3 * np.exp(-t / 60),
    }


@pytest.mark.parametrize("phase", LearningPhase)
def test_every_phase(phase: LearningPhase) -> None:
    scalars = {"loss": losses()[phase]}
    if phase is LearningPhase.OVERFITTING:
        t = np.arange(200)
        scalars["val_loss"] = 1 + ((t - 60) / 100.0) ** 2
    got = network({"a": noise(1)}, **scalars).training_dynamics
    assert got.learning_phase is phase


@pytest.mark.parametrize(
    ("length", "severity"),
    [
        (30, PlateauSeverity.MILD),
        (100, PlateauSeverity.MODERATE),
        (400, PlateauSeverity.SEVERE),
    ],
)
def test_a_plateau_has_its_real_start_and_length(length: int, severity: PlateauSeverity) -> None:
    falling = np.linspace(2, 1, 100)
    loss = np.concatenate([falling, np.ones(length)])
    run = Run.from_norms({"a": noise(1, len(loss))}, scalars={"loss": loss})
    got = analyze_gradients(run).network_level_analysis.training_dynamics.plateau_detection
    assert got.is_plateau
    assert got.plateau_severity is severity
    assert abs(got.plateau_start - 99) <= 30  # the smoothing of a twentieth of the run
    assert got.plateau_start + got.plateau_duration == len(loss) - 1


def test_no_plateau_while_the_loss_falls() -> None:
    got = network({"a": noise(1)}, loss=np.exp(-np.arange(200) / 80)).training_dynamics
    assert got.plateau_detection.is_plateau is False
    assert got.plateau_detection.plateau_severity is None
    assert got.learning_velocity > 0


# -- stability ------------------------------------------------------------------------------------


def growing_noise(first: float, last: float, size: int = 600) -> np.ndarray:
    return np.exp(np.linspace(first, last, size) * RNG(9).normal(size=size))


def test_every_trend_of_stability() -> None:
    def trend(x: np.ndarray) -> StabilityTrend:
        return network({"a": x, "b": x}).stability_assessment.stability_trend

    assert trend(growing_noise(0.05, 1.0)) is StabilityTrend.DEGRADING
    assert trend(growing_noise(1.0, 0.05)) is StabilityTrend.IMPROVING
    assert trend(noise(4, 600)) is StabilityTrend.STABLE


def test_the_threshold_decides_how_soon_a_fall_is_told() -> None:
    for seed in range(200):
        spreads = 0.3 + 0.02 * np.arange(12) / 11 + 0.02 * RNG(seed).normal(size=12)
        pieces = np.concatenate(
            [s * RNG(seed + i).choice([-1, 1], 50) for i, s in enumerate(spreads)]
        )
        run = Run.from_norms({"a": np.exp(pieces)})
        low, high = (
            analyze_gradients(
                run, stability_threshold=t
            ).network_level_analysis.stability_assessment.stability_trend
            for t in (0.0, 1.0)
        )
        if low is not high:
            assert (low, high) != (StabilityTrend.DEGRADING, StabilityTrend.STABLE)
            return
    pytest.fail("the threshold changed no verdict")


def test_forecasts_are_borne_out_or_null() -> None:
    steady = network({"a": noise(4, 600)}).stability_assessment.stability_forecast
    assert steady.short_term_outlook is StabilityOutlook.STABLE
    assert steady.confidence_level >= 2 / 3
    worse = network({"a": growing_noise(0.05, 2.0)}).stability_assessment.stability_forecast
    assert worse.long_term_outlook is StabilityOutlook.DETERIORATING
    better = network({"a": growing_noise(2.0, 0.05)}).stability_assessment.stability_forecast
    assert better.long_term_outlook in (StabilityOutlook.IMPROVING, StabilityOutlook.UNCERTAIN)
    short = network({"a": noise(4, 20)}).stability_assessment
    assert short.stability_forecast is None
    assert "too short" in short.missing["stability_forecast"]


def test_every_kind_of_instability_is_named_with_its_layer() -> None:
    ok = {f"ok{i}": noise(i, 100) for i in range(5)}
    sick = {
        InstabilityType.GRADIENT_EXPLOSION: np.logspace(0, 6, 100),
        InstabilityType.GRADIENT_VANISHING: 1e-7 * noise(1, 100),
        InstabilityType.OSCILLATION: 1 + 0.5 * (-1.0) ** np.arange(100),
        InstabilityType.STAGNATION: np.concatenate([noise(2, 80), np.full(20, 0.7)]),
        InstabilityType.CHAOS: np.exp(3 * RNG(6).normal(size=100)),
    }
    for type_ in InstabilityType:
        sources = network({"sick": sick[type_], **ok}).stability_assessment.instability_sources
        assert any(s.source_type is type_ and s.affected_layers == ("sick",) for s in sources)
        assert all(0 <= s.severity <= 1 for s in sources)


# -- health of the whole, urgency, hierarchy ------------------------------------------------------


def test_one_critical_layer_is_never_healthy() -> None:
    healthy, critical = LayerHealth.HEALTHY, LayerHealth.CRITICAL
    assert overall_health([healthy] * 23 + [critical]) is LayerHealth.WARNING
    assert overall_health([critical] * 4 + [healthy] * 6) is LayerHealth.CRITICAL
    assert overall_health([LayerHealth.UNKNOWN]) is LayerHealth.UNKNOWN
    assert overall_health([healthy, LayerHealth.UNKNOWN]) is LayerHealth.HEALTHY


def test_every_urgency() -> None:
    assert urgency(LayerHealth.CRITICAL, None) is Urgency.CRITICAL
    assert urgency(LayerHealth.WARNING, 0.2) is Urgency.HIGH
    assert urgency(LayerHealth.WARNING, 0.6) is Urgency.MEDIUM
    assert urgency(LayerHealth.HEALTHY, 0.9) is Urgency.LOW


def grouped() -> Run:
    names = [f"layers.{b}.{part}.weight" for b in range(3) for part in ("attn", "mlp")]
    decades = (0.0, 0.2, -1.0, -1.2, -4.5, -4.0)
    table = np.stack([10**d * noise(i) for i, d in enumerate(decades)], axis=1)
    subjects = [
        Subject(Kind.PARAMETER, n, n.rpartition(".")[0], (4, 4), "float32", 16, module="Linear")
        for n in names
    ]
    return make_run({"grad_norm": table}, subjects=subjects)


def test_groups_are_blocks_kinds_and_levels() -> None:
    found = analyze_gradients(grouped()).gradient_hierarchy
    groups = {group.group_name: group for group in found.layer_groups}
    assert groups["block layers.1"].layers == ("layers.1.attn", "layers.1.mlp")
    assert len(groups["kind Linear"].layers) == 6
    assert groups["gradient level high"].layers == ("layers.0.attn", "layers.0.mlp")
    assert groups["gradient level low"].layers == ("layers.2.attn", "layers.2.mlp")
    shares = [groups[f"block layers.{i}"].group_characteristics.importance for i in range(3)]
    assert sum(shares) == pytest.approx(1.0)
    levels = {level.level_name: level for level in found.hierarchy_levels}
    assert levels["block"].level_importance > 0.9
    assert levels["kind"].level_importance == pytest.approx(0.0)


def test_every_difficulty() -> None:
    decades = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -2.5, -5.0]
    norms = {f"b.{i}": 10.0**d * noise(i) for i, d in enumerate(decades)}
    groups = analyze_gradients(Run.from_norms(norms)).gradient_hierarchy.layer_groups
    found = {g.group_characteristics.optimization_difficulty for g in groups}
    assert found >= set(Difficulty)


@pytest.mark.parametrize(
    ("lag", "direction"),
    [
        (0, InteractionDirection.BIDIRECTIONAL),
        (1, InteractionDirection.BOTTOM_UP),
        (-1, InteractionDirection.TOP_DOWN),
    ],
)
def test_who_leads_between_blocks(lag: int, direction: InteractionDirection) -> None:
    moves = 0.1 * RNG(0).normal(size=102)
    first, second = moves[1:-1], np.roll(moves, lag)[1:-1]
    run = Run.from_norms({"b.0": np.exp(np.cumsum(first)), "b.1": np.exp(np.cumsum(second))})
    (found,) = analyze_gradients(run).gradient_hierarchy.cross_level_interactions
    assert found.direction is direction
    assert found.interaction_strength > 0.9
