"""Convergence, dynamics and stability: each level is produced by a run made for it."""

import math

import numpy as np
import pytest

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.training import (
    ConvergenceTrend,
    InstabilityType,
    LearningPhase,
    PlateauSeverity,
    StabilityOutlook,
    StabilityTrend,
)
from gradwatch.run import Run

RNG = np.random.default_rng


def noise(seed: int, size: int = 200, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * RNG(seed).normal(size=size))


def network(norms: dict, **scalars):
    return analyze_gradients(Run.from_norms(norms, scalars=scalars)).network_level_analysis


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
