"""Regions and dead zones: the layers the findings name, and how far they are gone."""

import itertools

import numpy as np
import pytest
from tests.analysis.flow.runs import noise, run_of
from tests.making import make_run

from gradwatch.analysis.flow import GradientFlow, analyze_flow
from gradwatch.analysis.flow.regions import RecoveryPotential, RegionSeverity
from gradwatch.checks.limits import Trouble
from gradwatch.diagnosis.verdict import verdicts
from gradwatch.finding import Severity
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind, State


def fading(decades_under: float, length: int = 80) -> Run:
    """Two neighbours fade at step 30 to 10^−decades under the limit of 1e-4."""
    low = np.where(np.arange(length) < 30, 1.0, 1e-4 * 10**-decades_under)
    norms = {"in": noise(0, length), "f1": low, "f2": low, "out": np.ones(length)}
    counts = {"in": 3, "f1": 10, "f2": 32, "out": 5}
    return run_of(norms, list(itertools.pairwise(norms)), counts=counts)


@pytest.mark.parametrize(
    ("decades", "severity"),
    [
        (0.3, RegionSeverity.MILD),
        (0.6, RegionSeverity.MODERATE),
        (0.9, RegionSeverity.MODERATE),
        (1.7, RegionSeverity.SEVERE),
        (3.0, RegionSeverity.SEVERE),
    ],
)
def test_a_vanishing_region_spans_its_layers(decades: float, severity: RegionSeverity) -> None:
    (region,) = analyze_flow(fading(decades)).vanishing_regions
    assert region.affected_layers == ("f1", "f2")
    assert region.severity_level is severity
    assert region.extent.affected_parameters == 42
    assert region.extent.start_step == 30
    assert region.extent.duration_steps == 50
    assert region.current


def test_just_above_the_limit_there_is_no_region() -> None:
    assert analyze_flow(fading(-0.1)).vanishing_regions == ()


def test_a_past_episode_is_told_apart() -> None:
    low = np.ones(80)
    low[10:60] = 1e-7
    (region,) = analyze_flow(run_of({"a": low, "b": np.ones(80)}, [("a", "b")])).vanishing_regions
    assert not region.current
    assert (region.extent.start_step, region.extent.end_step) == (10, 59)
    low[60:] = 1e-7
    (region,) = analyze_flow(run_of({"a": low, "b": np.ones(80)}, [("a", "b")])).vanishing_regions
    assert region.current
    low[23:] = 1.0  # a short one is no finding
    run = run_of({"a": low, "b": np.ones(80)}, [("a", "b")])
    assert analyze_flow(run).vanishing_regions == ()


@pytest.mark.parametrize(
    ("decades", "severity"),
    [
        (0.2, RegionSeverity.MILD),
        (0.5, RegionSeverity.MODERATE),
        (2.0, RegionSeverity.SEVERE),
        (3.5, RegionSeverity.CRITICAL),
    ],
)
def test_an_exploding_region(decades: float, severity: RegionSeverity) -> None:
    high = np.ones(80)
    high[50:60] = 1e3 * 10**decades
    run = run_of({"a": np.ones(80), "b": high, "c": np.ones(80)})
    (region,) = analyze_flow(run).exploding_regions
    assert region.affected_layers == ("b",)
    assert region.severity_level is severity
    assert region.extent.start_step == 50


@pytest.mark.parametrize(
    ("levels", "critical"),
    [
        ({"a": 1e-9, "b": 1.0}, False),  # starved: a warning, however far below
        ({"a": 1e-30, "b": 1e-30}, True),
        ({"a": 9e5}, False),
        ({"a": 2e6}, True),
    ],
)
def test_a_region_is_critical_where_the_finding_is(
    levels: dict[str, float], critical: bool
) -> None:
    run = Run.from_norms({name: np.full(60, level) for name, level in levels.items()})
    flow = analyze_flow(run)
    (region,) = flow.vanishing_regions + flow.exploding_regions
    assert (verdicts(run).diagnosis.worst is Severity.CRITICAL) is critical
    assert (region.severity_level is RegionSeverity.CRITICAL) is critical


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_explosion_on_the_last_steps_is_a_region(steps: int) -> None:
    high = np.where(np.arange(80) < 80 - steps, 1.0, 2e4)
    (region,) = analyze_flow(run_of({"a": np.ones(80), "b": high})).exploding_regions
    assert (region.extent.start_step, region.current) == (80 - steps, True)
    high = np.where(np.arange(80) < 80 - steps, 1.0, 500.0)
    assert analyze_flow(run_of({"a": np.ones(80), "b": high})).exploding_regions == ()


def test_a_nan_is_no_explosion() -> None:
    run = Run.from_norms({"a": [1.0] * 9 + [np.nan] + [1.0] * 10, "b": [1.0] * 20})
    flow = analyze_flow(run)
    assert flow.exploding_regions == ()
    assert flow.non_finite_since == 9


def test_layers_that_offend_apart_are_regions_apart() -> None:
    def loud(first: int, last: int) -> np.ndarray:
        return np.where((np.arange(80) >= first) & (np.arange(80) <= last), 1e5, 1.0)

    norms = {"a": loud(10, 20), "b": loud(15, 30), "c": loud(40, 50), "d": np.ones(80)}
    norms |= {"e": loud(12, 18)}
    found = analyze_flow(run_of(norms)).exploding_regions
    assert [region.affected_layers for region in found] == [("a", "b"), ("e",), ("c",)]
    assert [(r.extent.start_step, r.extent.end_step) for r in found] == [
        (10, 30),
        (12, 18),
        (40, 50),
    ]
    assert not any(region.current for region in found)


def test_sizes_that_are_not_known_are_not_nought() -> None:
    flow = analyze_flow({"a": np.full(20, 1e-9), "b": np.ones(20)})
    (region,) = flow.vanishing_regions
    assert region.extent.affected_parameters is None
    assert "affected_parameters" in region.extent.missing


def named(flow: GradientFlow) -> dict[Trouble, set[str]]:
    listed = {
        Trouble.VANISHING: flow.vanishing_regions,
        Trouble.EXPLODING: flow.exploding_regions,
        Trouble.DEAD: flow.dead_zones,
    }
    for kind, parts in listed.items():
        layers = [name for part in parts for name in part.affected_layers]
        assert len(layers) == len(set(layers)), kind  # each in one region only
    return {k: {name for part in v for name in part.affected_layers} for k, v in listed.items()}


@pytest.mark.parametrize("seed", range(40))
def test_regions_hold_the_layers_the_findings_name(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(3, 120))
    norms = {}
    for i in range(int(rng.integers(1, 12))):
        level = 10.0 ** rng.choice([0, 0, 0, -5, -8, -25, 4, 7])
        moves = np.ones(steps)
        begin = int(rng.integers(0, steps))
        moves[begin:] = rng.choice([1.0, 1.0, 0.0, 1e-6, 1e5])
        norms[f"l{i}"] = level * moves * noise(seed + i, steps)
    loss = np.exp(-np.arange(steps) / 20) if seed % 2 else np.ones(steps)
    run = Run.from_norms(norms, scalars={"loss": loss} if seed % 3 else None)
    said = verdicts(run)
    found = named(analyze_flow(run))
    assert found == {kind: set(said.layers_with(kind)) for kind in found}


def test_the_made_runs_hold_every_kind() -> None:
    flow = analyze_flow(
        {"a": np.full(60, 1e-8), "b": np.ones(60), "c": np.full(60, 1e5), "d": np.zeros(60)}
    )
    assert all(named(flow).values())


# -- dead zones ------------------------------------------------------------------------------------


def silent(before: int, dead: int) -> np.ndarray:
    return np.concatenate([np.ones(before), np.zeros(dead)])


def zones(**norms: np.ndarray) -> list[tuple]:
    found = analyze_flow(run_of(norms)).dead_zones
    return [(zone.affected_layers, zone.start_step, zone.recovery_potential) for zone in found]


def test_a_layer_that_has_revived_before_may_again() -> None:
    revived = np.concatenate([silent(10, 15), silent(30, 25)])
    assert zones(a=revived, b=np.ones(80)) == [(("a",), 55, RecoveryPotential.HIGH)]
    shorter = np.concatenate([silent(10, 12), silent(33, 25)])
    assert zones(a=shorter, b=np.ones(80)) == [(("a",), 55, RecoveryPotential.LOW)]


def test_ten_samples_to_the_end_make_a_zone() -> None:
    (zone,) = analyze_flow(run_of({"a": silent(70, 10), "b": np.ones(80)})).dead_zones
    assert (zone.start_step, zone.dead_duration) == (70, 10)
    assert zone.recovery_potential is RecoveryPotential.LOW
    assert not zone.intervention_required
    assert zones(a=silent(71, 9), b=np.ones(80)) == []
    assert analyze_flow(run_of({"a": silent(30, 49)})).dead_zones[0].intervention_required is False
    assert analyze_flow(run_of({"a": silent(30, 50)})).dead_zones[0].intervention_required is True


def test_living_outputs_give_hope_and_none_gives_none() -> None:
    subjects = [
        Subject(Kind.PARAMETER, "a.weight", "a", (2, 2), "float32", 4),
        Subject(Kind.PARAMETER, "b.weight", "b", (2, 2), "float32", 4),
        Subject(Kind.LAYER, "a", "a"),
    ]
    table = np.stack([silent(20, 60), np.ones(80)], axis=1)
    for spread, expected in ((1.0, RecoveryPotential.MEDIUM), (0.0, RecoveryPotential.LOW)):
        recorded = {"grad_norm": table, "act_std": np.full((80, 1), spread)}
        (zone,) = analyze_flow(make_run(recorded, subjects=subjects)).dead_zones
        assert zone.recovery_potential is expected
    absent = np.stack([np.full(80, np.nan), np.ones(80)], axis=1)
    states = np.where(np.isnan(absent), State.NO_GRADIENT, State.MEASURED)
    run = make_run({"grad_norm": absent}, subjects=subjects[:2], states={"grad_norm": states})
    (zone,) = analyze_flow(run).dead_zones
    assert zone.recovery_potential is RecoveryPotential.NONE
    assert zone.intervention_required


def test_dead_neighbours_are_one_zone() -> None:
    ok = np.ones(80)
    found = zones(a=silent(20, 60), b=silent(30, 50), c=ok, d=silent(40, 40))
    low = RecoveryPotential.LOW
    assert found == [(("a", "b"), 20, low), (("d",), 40, low)]
