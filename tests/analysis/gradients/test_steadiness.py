"""Stability, its forecast and what disturbs it: each level is produced by a run made for it."""

import numpy as np
import pytest

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.steadiness import (
    InstabilityType,
    Monitoring,
    StabilityOutlook,
    StabilityTrend,
    expected,
    stability,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.diagnosis import Trouble, verdicts
from gradwatch.run import Run

RNG = np.random.default_rng


def noise(seed: int, size: int = 200, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * RNG(seed).normal(size=size))


def network(norms: dict, **scalars):
    return analyze_gradients(Run.from_norms(norms, scalars=scalars)).network_level_analysis


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
