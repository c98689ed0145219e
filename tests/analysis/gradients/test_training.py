"""Convergence, dynamics and stability: each level is produced by a run made for it."""

import math

import numpy as np
import pytest

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.training import (
    ConvergenceTrend,
    InstabilityType,
    LearningPhase,
    Monitoring,
    PlateauSeverity,
    StabilityOutlook,
    StabilityTrend,
    convergence,
    expected,
    stability,
    steps_left,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.diagnosis.verdict import Trouble, verdicts
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
        series = LayerSeries.of(run)
        low, high = (
            stability(run, series, series.last(100), t).stability_trend for t in (0.0, 1.0)
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
    short = network({"a": noise(4, 20)}).stability_assessment.stability_forecast
    assert short.short_term_outlook is None
    assert "too short" in short.missing["short_term_outlook"]


def test_the_expected_stability_holds_the_next_stretch_in_95_of_100_runs() -> None:
    for slope in (0.0, -0.02):
        made = 0.6 + 0.03 * RNG(7).normal(size=(1000, 13)) + slope * np.arange(13)
        intervals = (expected(pieces[:-1], 1) for pieces in made)
        pairs = zip(intervals, made[:, -1], strict=True)
        assert 0.9 <= np.mean([low <= truth <= high for (low, high), truth in pairs]) <= 0.99
    low, high = network(
        {"a": noise(4, 600)}
    ).stability_assessment.stability_forecast.expected_stability
    assert 0 <= low < 0.93 < high <= 1  # 1 / (1 + 0.1 / √2)


def test_monitoring_names_what_is_missing_and_what_is_unsteady() -> None:
    def advice(norms: dict, **scalars) -> dict:
        forecast = network(norms, **scalars).stability_assessment.stability_forecast
        return {item.what: item.layers for item in forecast.recommended_monitoring}

    bare = advice({"a": noise(1, 20)})
    assert set(bare) == set(Monitoring) - {Monitoring.WATCH_LAYERS}
    swinging = {"a": noise(1, 100), "b": 1 + 0.5 * (-1.0) ** np.arange(100)}
    full = advice(swinging, loss=noise(2, 100), val_loss=noise(3, 100))
    assert full[Monitoring.WATCH_LAYERS] == ("b",)
    assert not {
        Monitoring.LOG_LOSS,
        Monitoring.LOG_VALIDATION_LOSS,
        Monitoring.RECORD_MORE_STEPS,
    } & set(full)


SOURCES = {
    InstabilityType.GRADIENT_EXPLOSION: np.logspace(0, 6, 100),
    InstabilityType.GRADIENT_VANISHING: np.logspace(0, -9, 100),
    InstabilityType.OSCILLATION: 1 + 0.5 * (-1.0) ** np.arange(100),
    InstabilityType.STAGNATION: np.concatenate([noise(2, 80), np.full(20, 0.7)]),
    InstabilityType.CHAOS: np.exp(3 * RNG(6).normal(size=100)),
}
NO_SOURCES = {
    InstabilityType.GRADIENT_EXPLOSION: np.logspace(0, 1, 100),
    InstabilityType.GRADIENT_VANISHING: np.logspace(0, -1, 100),
    InstabilityType.OSCILLATION: noise(8, 100),
    InstabilityType.STAGNATION: np.concatenate([noise(2, 91), np.full(9, 0.7)]),
    InstabilityType.CHAOS: np.exp(0.7 * RNG(6).normal(size=100)),
}


@pytest.mark.parametrize("type_", InstabilityType)
def test_every_kind_of_instability_is_named_with_its_layer(type_: InstabilityType) -> None:
    ok = {f"ok{i}": noise(i, 100) for i in range(5)}
    sources = network({"sick": SOURCES[type_], **ok}).stability_assessment.instability_sources
    (source,) = (s for s in sources if s.source_type is type_)
    assert source.affected_layers == ("sick",)
    assert 0 < source.severity <= 1
    nearly = network({"sick": NO_SOURCES[type_], **ok}).stability_assessment.instability_sources
    assert type_ not in {s.source_type for s in nearly}


def test_an_explosion_is_held_against_the_layers_own_past() -> None:
    run = Run.from_norms({"a": 10 ** np.linspace(-2, 6, 100)})
    sources = analyze_gradients(run).network_level_analysis.stability_assessment.instability_sources
    (source,) = sources
    assert source.source_type is InstabilityType.GRADIENT_EXPLOSION
    assert source.severity > 0
    assert "1.5e-02 at the start" in source.description
    assert "1.0e+06 at most" in source.description
    (dead,) = network({"a": np.zeros(30)}).stability_assessment.instability_sources
    assert dead.source_type is InstabilityType.GRADIENT_VANISHING
    assert dead.description.endswith("since step 0: 0 at the start, 0 at the end")


def test_explosion_and_vanishing_are_exactly_the_diagnosis_s() -> None:
    """Not finite is no explosion; what is dead vanishes; nothing says nan."""
    norms = {
        "grows": np.logspace(0, 6, 100),
        "dead": np.concatenate([noise(1, 50), np.zeros(50)]),
        "fades": np.logspace(0, -9, 100),
        "always zero": np.zeros(100),
        **{f"ok{i}": noise(i, 100) for i in range(5)},
    }
    broken = {**norms, "nan": np.where(np.arange(100) < 80, noise(9, 100), np.nan)}
    for made in (norms, broken, {"all nan": np.full(100, np.nan)}):
        run = Run.from_norms(made)
        network = analyze_gradients(run).network_level_analysis
        said = {t: set(verdicts(run).layers_with(t)) for t in Trouble}
        found: dict[InstabilityType, set[str]] = {t: set() for t in InstabilityType}
        for source in network.stability_assessment.instability_sources:
            found[source.source_type] |= set(source.affected_layers)
            assert "nan" not in source.description.replace("of nan", "").replace("all nan", "")
            assert 0 < source.severity <= 1
        assert found[InstabilityType.GRADIENT_EXPLOSION] == said[Trouble.EXPLODING]
        vanished = said[Trouble.VANISHING] | said[Trouble.DEAD]
        assert found[InstabilityType.GRADIENT_VANISHING] == vanished
