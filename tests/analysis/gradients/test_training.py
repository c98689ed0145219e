"""Convergence and dynamics: each level is produced by a run made for it."""

import math

import numpy as np
import pytest

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.training import (
    ConvergenceTrend,
    LearningPhase,
    PlateauSeverity,
    convergence,
    steps_left,
)
from gradwatch.analysis.layers import LayerSeries
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


NEARLY = {
    ConvergenceTrend.CONVERGING: noise(21) * np.exp(-np.arange(200) / 4000),  # lost in the noise
    ConvergenceTrend.DIVERGING: noise(22) * np.exp(np.arange(200) / 4000),
    ConvergenceTrend.STABLE: np.exp(-np.arange(200) / 300) * noise(7, spread=0.02),
    ConvergenceTrend.OSCILLATING: np.exp(0.3 * np.sin(np.arange(200) / 5)),  # smooth waves
    ConvergenceTrend.UNKNOWN: np.linspace(1, 2, 5),  # few, but none turns back
}


@pytest.mark.parametrize("trend", ConvergenceTrend)
def test_what_is_nearly_a_trend_is_not(trend: ConvergenceTrend) -> None:
    got = network({"a": NEARLY[trend], "b": NEARLY[trend]}).convergence_indicators
    assert got.convergence_trend is not trend


def test_a_layer_without_samples_or_with_huge_norms_does_not_hide_the_trend() -> None:
    falling = TRENDS[ConvergenceTrend.CONVERGING]
    norms = {"a": 1e306 * falling, "b": 1e306 * falling, "none": []}
    steps = {"a": list(range(200)), "b": list(range(200)), "none": []}
    run = Run.from_norms(norms, steps=steps)
    got = convergence(run, LayerSeries.of(run), [], 100)
    assert got.convergence_trend is ConvergenceTrend.CONVERGING


def correlated(rng: np.random.Generator, memory: float, length: int, series: int) -> np.ndarray:
    """Noise [series, step] of standard deviation 1 of which each sample keeps a share."""
    noise = rng.normal(size=(length + 60, series))
    for i in range(1, len(noise)):
        noise[i] = memory * noise[i - 1] + math.sqrt(1 - memory**2) * noise[i]
    return noise[60:].T


def pink(rng: np.random.Generator, length: int, series: int) -> np.ndarray:
    """1/f noise [series, step], cut out of a longer stretch."""
    frequencies = np.fft.rfftfreq(16 * length)
    frequencies[0] = np.inf
    shape = (series, len(frequencies))
    spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / np.sqrt(frequencies)
    made = np.fft.irfft(spectrum, 16 * length, axis=1)[:, :length]
    return made / made.std()


@pytest.mark.parametrize("memory", ["none", "half", "long"])
def test_steps_to_convergence_hold_the_truth_in_95_of_100_runs(memory: str) -> None:
    tau, length, spread = 80.0, 200, 0.15
    truth = tau * math.log(100) - (length - 1)
    steps = np.arange(length)
    scatter = {
        "none": correlated(RNG(3), 0.0, length, 1000),
        "half": correlated(RNG(4), 0.5, length, 1000),
        "long": pink(RNG(5), length, 1000),
    }[memory]
    made = -steps / tau + spread * scatter
    told = [steps_left(steps, logs, 100) for logs in made]
    intervals = [interval for interval in told if isinstance(interval, tuple)]
    assert len(intervals) > 950
    hits = sum(low <= truth <= high for low, high in intervals)
    assert 0.9 <= hits / len(intervals) <= 0.99
    assert np.median([high - low for low, high in intervals]) < 1.5 * truth  # and says something


def test_steps_to_convergence_come_with_the_analysis_or_a_reason() -> None:
    falling = np.exp(-np.arange(200) / 80) * noise(3, spread=0.05)
    low, high = network({"a": falling}).convergence_indicators.estimated_steps_to_convergence
    assert low < 169 < high
    exact = network({"a": np.exp(-np.arange(20) / 10)}).convergence_indicators
    assert exact.estimated_steps_to_convergence in [(27, 28), (27, 27), (28, 28)]  # 10 ln 100 − 19
    flat = network({"a": noise(3)}).convergence_indicators
    assert flat.estimated_steps_to_convergence is None
    assert "does not fall" in flat.missing["estimated_steps_to_convergence"]
    done = np.concatenate([np.ones(100), np.exp(-np.arange(100) / 10.0)])
    got = network({"a": done * noise(4, spread=0.01)}).convergence_indicators
    assert got.estimated_steps_to_convergence == (0, 0)


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


RISING_LATER = 1 + ((np.arange(200) - 60) / 100.0) ** 2


@pytest.mark.parametrize("phase", LearningPhase)
def test_every_phase(phase: LearningPhase) -> None:
    scalars = {"loss": losses()[phase]}
    if phase is LearningPhase.OVERFITTING:
        scalars["val_loss"] = RISING_LATER
    got = network({"a": noise(1)}, **scalars).training_dynamics
    assert got.learning_phase is phase


def near_misses() -> dict[LearningPhase, dict[str, np.ndarray]]:
    t, scatter = np.arange(200), RNG(1).normal(size=200)
    return {
        LearningPhase.INITIAL_LEARNING: {"loss": 2.3 - 1e-3 * t},  # a fall of 9 %
        LearningPhase.RAPID_LEARNING: {"loss": 2.3 * np.exp(-t / 110)},  # slower than half
        LearningPhase.REFINEMENT: {"loss": 2.3 * np.exp(-t / 50)},
        LearningPhase.CONVERGENCE: {"loss": 2.3 * np.exp(-t / 60)},
        LearningPhase.PLATEAU: {"loss": 1 - 0.3 * t / 200 + 0.05 * scatter},  # falls in noise
        LearningPhase.OVERFITTING: {"loss": 2 + 0.01 * t, "val_loss": RISING_LATER},  # both rise
    }


@pytest.mark.parametrize("phase", LearningPhase)
def test_what_is_nearly_a_phase_is_not(phase: LearningPhase) -> None:
    got = network({"a": noise(1)}, **near_misses()[phase]).training_dynamics
    assert got.learning_phase is not phase


T = np.arange(300)
NO_PLATEAU = {
    "diverges": 2 * np.exp(T / 23),
    "rises slowly": 1 + 0.002 * T + 0.05 * RNG(2).normal(size=300),
    "falls slowly": 1 - 0.002 * T + 0.05 * RNG(3).normal(size=300),
    "zig-zag": 1 + 0.5 * (-1.0) ** T,
    "waves": 1 + 0.5 * np.sin(2 * np.pi * T / 40) + 0.05 * RNG(4).normal(size=300),
    "short waves": 1 + 0.5 * np.sin(2 * np.pi * T / 4) + 0.1 * RNG(5).normal(size=300),
    "fell and rises again": 1 + ((T - 150) / 150.0) ** 2,
    "ten values": np.where(T % 30 == 0, 1.0, np.nan),
    "NaN for the second half": np.where(T < 150, 1.0, np.nan),
    "always NaN": np.full(300, np.nan),
}


@pytest.mark.parametrize("kind", NO_PLATEAU)
def test_only_a_level_loss_is_a_plateau(kind: str) -> None:
    got = network({"a": noise(1, 300)}, loss=NO_PLATEAU[kind]).training_dynamics
    assert not got.plateau_detection.is_plateau
    assert got.learning_phase is not LearningPhase.PLATEAU


def test_level_losses_with_any_memory_are_plateaus_and_slopes_in_noise_are_not() -> None:
    def plateaus(made: np.ndarray) -> int:
        runs = (network({"a": np.ones(200)}, loss=loss).training_dynamics for loss in made)
        return sum(run.plateau_detection.is_plateau for run in runs)

    for memory in (0.0, 0.6):
        level = 2 + 0.05 * correlated(RNG(6), memory, 200, 20)
        assert plateaus(level) >= 18
        assert plateaus(level - 0.3 * np.arange(200) / 200) <= 3


def test_a_diverging_or_oscillating_loss_has_no_phase_and_says_why() -> None:
    for kind, word in (("diverges", "rises"), ("zig-zag", "oscillates")):
        got = network({"a": noise(1, 300)}, loss=NO_PLATEAU[kind]).training_dynamics
        assert got.learning_phase is None
        assert word in got.missing["learning_phase"]


@pytest.mark.parametrize(
    ("logged", "said"),
    [(0, "not logged"), (7, "logged 7 times; 8"), *((n, "") for n in range(8, 11))],
)
def test_few_losses_say_what_they_are(logged: int, said: str) -> None:
    loss = np.full(200, np.nan)
    loss[: 20 * logged : 20] = np.linspace(2, 1, logged)
    got = network({"a": noise(1)}, loss=loss).training_dynamics
    if said:
        assert got.learning_phase is None
        assert said in got.missing["learning_phase"]
        assert said in got.plateau_detection.missing["is_plateau"]
    else:
        assert got.learning_phase is LearningPhase.RAPID_LEARNING
        assert got.plateau_detection.is_plateau is False


def test_a_lost_loss_is_described_up_to_where_it_was() -> None:
    loss = np.where(np.arange(200) < 100, 2 - 0.01 * np.arange(200), np.nan)
    got = network({"a": noise(1)}, loss=loss).training_dynamics
    assert got.learning_phase is None
    reason = got.missing["learning_phase"]
    assert "no finite value after step 99" in reason
    assert "until then RapidLearning" in reason
    norms = np.where(np.arange(200) < 120, noise(1), np.nan)
    got = network({"a": norms}, loss=np.exp(-np.arange(200) / 20)).training_dynamics
    assert "not finite from step 120 on; until then Convergence" in got.missing["learning_phase"]


def test_a_long_loss_costs_no_square_of_its_length() -> None:
    loss = 2.3 + 0.01 * RNG(0).normal(size=50_000)
    run = Run.from_norms({"a": np.ones(50_000)}, scalars={"loss": loss, "val_loss": loss})
    got = analyze_gradients(run).network_level_analysis.training_dynamics
    assert got.learning_phase is LearningPhase.PLATEAU
    assert got.plateau_detection.plateau_severity is PlateauSeverity.SEVERE


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
