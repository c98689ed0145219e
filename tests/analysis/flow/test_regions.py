"""Regions and dead zones: the layers the findings name, and how far they are gone."""

import itertools

import numpy as np
import pytest
from tests.analysis.flow.runs import noise, run_of
from tests.making import make_run

from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.flow.regions import RecoveryPotential, RegionSeverity
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind, State

# -- regions --------------------------------------------------------------------------------------


def fading(decades_under: float) -> Run:
    """Two neighbours fade at step 40 to 10^−decades under the limit of 1e-4."""
    low = np.where(np.arange(80) < 40, 1.0, 1e-4 * 10**-decades_under)
    norms = {"in": noise(0), "f1": low * noise(1, spread=0), "f2": low, "out": np.ones(80)}
    counts = {"in": 3, "f1": 10, "f2": 32, "out": 5}
    return run_of(norms, list(itertools.pairwise(norms)), counts=counts)


@pytest.mark.parametrize(
    ("decades", "severity"),
    [
        (0.3, RegionSeverity.MILD),
        (0.9, RegionSeverity.MODERATE),
        (1.7, RegionSeverity.SEVERE),
        (3.0, RegionSeverity.CRITICAL),
    ],
)
def test_a_vanishing_region_spans_its_layers(decades: float, severity: RegionSeverity) -> None:
    (region,) = analyze_flow(fading(decades)).vanishing_regions
    assert region.affected_layers == ("f1", "f2")
    assert region.severity_level is severity
    assert region.extent.affected_parameters == 42
    assert region.extent.start_step == 40
    assert region.extent.duration_steps == 40
    assert region.current


def test_a_past_episode_is_told_apart_and_a_short_one_is_none() -> None:
    low = np.ones(80)
    low[20:40] = 1e-7
    run = run_of({"a": low, "b": np.ones(80)}, [("a", "b")])
    (region,) = analyze_flow(run).vanishing_regions
    assert not region.current
    assert (region.extent.start_step, region.extent.end_step) == (20, 39)
    low[20:40] = 1.0
    low[20:23] = 1e-7
    run = run_of({"a": low, "b": np.ones(80)}, [("a", "b")])
    assert analyze_flow(run).vanishing_regions == ()


@pytest.mark.parametrize(
    ("decades", "severity"),
    [
        (0.2, RegionSeverity.MILD),
        (0.5, RegionSeverity.MODERATE),
        (0.9, RegionSeverity.SEVERE),
        (2.0, RegionSeverity.CRITICAL),
    ],
)
def test_an_exploding_region(decades: float, severity: RegionSeverity) -> None:
    high = np.where(np.arange(80) < 50, 1.0, 1e3 * 10**decades)
    run = run_of({"a": np.ones(80), "b": high, "c": np.ones(80)})
    (region,) = analyze_flow(run).exploding_regions
    assert region.affected_layers == ("b",)
    assert region.severity_level is severity
    assert region.extent.start_step == 50


def silent(before: int, dead: int) -> np.ndarray:
    return np.concatenate([np.ones(before), np.zeros(dead)])


def test_every_recovery_potential() -> None:
    ok = np.ones(80)
    revived = np.concatenate([silent(10, 25), silent(20, 25)])
    (zone,) = analyze_flow(run_of({"a": revived, "b": ok})).dead_zones
    assert (zone.recovery_potential, zone.start_step) == (RecoveryPotential.HIGH, 55)
    (zone,) = analyze_flow(run_of({"a": silent(60, 20), "b": ok})).dead_zones
    assert zone.recovery_potential is RecoveryPotential.LOW
    assert not zone.intervention_required
    subjects = [
        Subject(Kind.PARAMETER, "a.weight", "a", (4,), "float32", 4),
        Subject(Kind.PARAMETER, "b.weight", "b", (4,), "float32", 4),
        Subject(Kind.LAYER, "a", "a"),
    ]
    table = np.stack([silent(20, 60), ok], axis=1)
    alive = {"grad_norm": table, "act_std": np.ones((80, 1))}
    (zone,) = analyze_flow(make_run(alive, subjects=subjects)).dead_zones
    assert zone.recovery_potential is RecoveryPotential.MEDIUM
    assert zone.intervention_required
    absent = np.stack([np.full(80, np.nan), ok], axis=1)
    states = np.where(np.isnan(absent), State.NO_GRADIENT, State.MEASURED)
    run = make_run({"grad_norm": absent}, subjects=subjects[:2], states={"grad_norm": states})
    (zone,) = analyze_flow(run).dead_zones
    assert zone.recovery_potential is RecoveryPotential.NONE
