"""No door contradicts another: all say of a layer what the findings of the diagnosis say.

320 made runs, healthy and sick, short and long, from norms and from arrays, with and without a
loss, are shown to the diagnosis, the gradient analysis, the flow, the animator (as a run and step
by step), the heat map and `gradwatch analyze`.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gradwatch import GradientFlowAnimator, analyze_flow, analyze_gradients
from gradwatch.cli.main import gradwatch
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.finding import Severity
from gradwatch.run import Run
from gradwatch.views.model import build
from gradwatch.views.model.heat import Code, codes_of

KINDS = {
    "vanishing-gradient": "Vanishing",
    "exploding-gradient": "Exploding",
    "no-gradient": "Dead",
    "nonfinite": "NonFinite",
}
WELL = {"Healthy", "Good", "Excellent"}
WORDS = {
    None: {"Healthy", "Unknown"},
    Severity.WARNING: {"Warning"},
    Severity.CRITICAL: {"Critical"},
}
ANIMATED = {
    None: {"Healthy", "Unknown"},
    Severity.INFO: {"Healthy", "MinorIssues"},
    Severity.WARNING: {"ProblemsDetected"},
    Severity.CRITICAL: {"Critical"},
}
RUNS, BATCH = 320, 40
Column = np.ndarray


# -- made runs -------------------------------------------------------------------------------------


def from_step(steps: int, random: np.random.Generator, high: float) -> Column:
    """One, and something else from a step on."""
    column = np.ones(steps)
    column[int(random.integers(1, steps)) :] = high
    return column


def at_the_end(steps: int, random: np.random.Generator, high: float) -> Column:
    column = np.ones(steps)
    column[-int(random.integers(1, 5)) :] = high
    return column


def spike(steps: int, random: np.random.Generator) -> Column:
    column = np.ones(steps)
    column[int(random.integers(0, steps))] = 10.0 ** random.integers(1, 5)
    return column


SHAPES: dict[str, Callable[[int, np.random.Generator], Column]] = {
    "sound": lambda steps, _: np.ones(steps),
    "small": lambda steps, _: np.full(steps, 1e-6),
    "weak": lambda steps, _: np.full(steps, 3e-3),
    "starved": lambda steps, _: np.full(steps, 1e-7),
    "faint": lambda steps, _: np.full(steps, 1e-30),
    "large": lambda steps, _: np.full(steps, 300.0),
    "huge": lambda steps, _: np.full(steps, 5e3),
    "enormous": lambda steps, _: np.full(steps, 1e12),
    "dead": lambda steps, _: np.zeros(steps),
    "falling": lambda steps, _: np.geomspace(1, 1e-3, steps),
    "fading": lambda steps, _: np.geomspace(1, 1e-12, steps),
    "growing": lambda steps, _: np.geomspace(1e-2, 1e6, steps),
    "rests": lambda steps, random: random.integers(0, 2, steps).astype(float),
    "dies": lambda steps, random: from_step(steps, random, 0.0),
    "breaks": lambda steps, random: from_step(steps, random, np.nan),
    "overflows": lambda steps, random: at_the_end(steps, random, np.inf),
    "explodes": lambda steps, random: from_step(steps, random, 10.0 ** random.integers(2, 9)),
    "explodes last": lambda steps, random: at_the_end(steps, random, 2e3),
    "spike": spike,
}
LOSSES: dict[str, Callable[[int], Column | None]] = {
    "none": lambda _: None,
    "flat": lambda steps: np.full(steps, 1.6),
    "falls": lambda steps: np.geomspace(1.6, 0.05, steps),
    "falls a little": lambda steps: np.linspace(1.6, 1.2, steps),
    "rises": lambda steps: np.geomspace(0.5, 20.0, steps),
    "zero": lambda steps: np.where(np.arange(steps) < steps // 2, 1.0, 0.0),
}


ARRAYS: dict[int, dict[str, list[Column | None]]] = {}
"""The runs that were made from arrays."""


@cache
def made(seed: int) -> Run:
    """A run of one to six layers; half of the runs have one shape throughout, half a mixture."""
    random = np.random.default_rng(seed)
    steps = int(random.choice([4, 8, 12, 25, 60, 120]))
    width = int(random.choice([1, 2, 3, 6]))
    kinds = random.choice(list(SHAPES), width)
    if random.random() < 0.5:  # one shape for all, or sound but for one
        kinds[:] = "sound" if random.random() < 0.4 else kinds[0]
        kinds[0] = random.choice(list(SHAPES))
    noise = random.lognormal(0, 0.2, (steps, width))
    columns = np.column_stack([SHAPES[kind](steps, random) for kind in kinds]) * noise
    loss = LOSSES[str(random.choice(list(LOSSES)))](steps)
    scalars: dict[str, Any] = {} if loss is None else {"loss": loss}
    names = [f"block.{i}" for i in range(width)]
    if random.random() < 0.3:
        scalars["skipped"] = (random.random(steps) < 0.1).astype(float)
    if random.random() < 0.7:
        return Run.from_norms(
            {name: columns[:, i] for i, name in enumerate(names)}, scalars=scalars
        )
    ARRAYS[seed] = arrays(names, columns, random)
    return Run.from_arrays(ARRAYS[seed], scalars=scalars)


def arrays(
    names: list[str], columns: Column, random: np.random.Generator
) -> dict[str, list[Column | None]]:
    """Matrices of these norms; now and then None, which stands for "no gradient"."""
    direction = np.full((3, 4), 12**-0.5)
    tables: dict[str, list[Column | None]] = {
        name: [norm * direction for norm in columns[:, i]] for i, name in enumerate(names)
    }
    if random.random() < 0.3:
        tables[names[0]] = [None] * len(columns)
    return tables


# -- what the diagnosis says, and what the doors say -----------------------------------------------


@cache
def judged(seed: int) -> Diagnosis:
    return diagnose(made(seed))


def named(seed: int, check: str | None = None) -> set[str]:
    """Layers of the findings at warning or above, of one check or of all."""
    return {
        layer
        for item in judged(seed).everything()
        if item.severity >= Severity.WARNING and check in {None, item.check}
        for layer in item.layers
    }


def worst(seed: int, check: str | None = None) -> dict[str, Severity]:
    """Layer → the gravest finding about it at warning or above, of one check or of all."""
    severities: dict[str, Severity] = {}
    for item in judged(seed).everything():
        if item.severity >= Severity.WARNING and check in {None, item.check}:
            for layer in item.layers:
                severities[layer] = max(item.severity, severities.get(layer, item.severity))
    return severities


def expected(seed: int) -> dict[str, set[str]]:
    return {kind: named(seed, check) for check, kind in KINDS.items()}


def differences(seed: int, said: dict[str, set[str]]) -> Iterator[str]:
    for kind, layers in said.items():
        if layers != expected(seed)[kind]:
            yield f"run {seed}, {kind}: {sorted(layers)} for {sorted(expected(seed)[kind])}"


def gradient_analysis(seed: int) -> Iterator[str]:
    result = analyze_gradients(made(seed))
    health = {name: item.health_metrics for name, item in result.layer_details.items()}
    risks = {name: {str(risk) for risk in item.risk_factors} for name, item in health.items()}
    said = {kind: {n for n, words in risks.items() if kind in words} for kind in KINDS.values()}
    yield from differences(seed, said)
    severities = worst(seed)
    for name, item in health.items():
        if str(item.overall_health) not in WORDS[severities.get(name)]:
            yield f"run {seed}: {name} is {item.overall_health}"
    overall = str(result.network_level_analysis.overall_gradient_health)
    if judged(seed).worst is Severity.CRITICAL and overall in WELL:
        yield f"run {seed}: the network is {overall}"


def flow(seed: int) -> Iterator[str]:
    result = analyze_flow(made(seed))
    regions = {
        "Vanishing": result.vanishing_regions,
        "Exploding": result.exploding_regions,
        "Dead": result.dead_zones,
    }
    yield from differences(
        seed,
        {kind: {n for r in found for n in r.affected_layers} for kind, found in regions.items()},
    )
    for check, found in (
        ("vanishing-gradient", result.vanishing_regions),
        ("exploding-gradient", result.exploding_regions),
    ):
        severities = worst(seed, check)
        for region in found:
            gravest = max(severities[name] for name in region.affected_layers)
            if (region.severity_level == "Critical") != (gravest is Severity.CRITICAL):
                yield f"run {seed}: {region.region_id} is {region.severity_level}"


def animator(seed: int) -> Iterator[str]:
    result = GradientFlowAnimator.from_run(made(seed))
    yield from differences(seed, animated(result))
    if str(result.summary().overall_health) not in ANIMATED[judged(seed).worst]:
        yield f"run {seed}: the animation is {result.summary().overall_health}"


def animator_step_by_step(seed: int) -> Iterator[str]:
    """It is shown the gradients alone, and says what is found in these."""
    steps = len(made(seed).steps)
    if (tables := ARRAYS.get(seed)) is None:
        return
    result = GradientFlowAnimator()
    for step in range(steps):
        result.record_step(step, {name: table[step] for name, table in tables.items()})
    alone = diagnose(tables)
    findings = [item for item in alone.everything() if item.severity >= Severity.WARNING]
    for check, kind in KINDS.items():
        layers = {name for item in findings if item.check == check for name in item.layers}
        if animated(result)[kind] != layers:
            yield f"run {seed}, {kind}: {animated(result)[kind]} for {layers}"
    if str(result.summary().overall_health) not in ANIMATED[alone.worst]:
        yield f"run {seed}: the animation is {result.summary().overall_health}"


def animated(animator: GradientFlowAnimator) -> dict[str, set[str]]:
    result = animator.summary()
    return {
        "Vanishing": set(result.layers_with_vanishing_grads),
        "Exploding": set(result.layers_with_exploding_grads),
        "Dead": set(result.layers_with_dead_grads),
        "NonFinite": set(result.layers_with_nonfinite_grads),
    }


def terminal(seed: int) -> Iterator[str]:
    """What is named first; and no word of health where something is critical."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwatch.cli.analyze.opened", lambda _: (made(seed), None))
        done = CliRunner().invoke(gradwatch, ["analyze", "."], env={"COLUMNS": "80"})
    if done.exception:
        yield f"run {seed}: {done.exception!r}"
        return
    lines = done.output.splitlines()
    first = next((item for item in judged(seed).findings if item.severity > Severity.INFO), None)
    where = "Nothing" if first is None else (*first.layers, "the whole run")[0]
    if not lines[0].removeprefix("Look first at ").startswith(where):
        yield f"run {seed}: {lines[0]}"
    sick = worst(seed)
    for line in lines if judged(seed).worst is Severity.CRITICAL else ():
        head = line.split(" ")[0]
        healthy = WELL & set(line.replace(".", "").split())
        if healthy and (head in sick or head not in made(seed).names):
            yield f"run {seed}: {line}"


def heat_map(seed: int) -> Iterator[str]:
    model = build(made(seed), judged(seed), stats=["grad_rms"], sections=["heat"])
    if "grad_rms" not in model.heat["maps"]:
        return
    codes, _ = codes_of(model.heat, "grad_rms")
    marked = np.flatnonzero((codes == Code.NONFINITE).any(axis=1))
    yield from differences(seed, {"NonFinite": {made(seed).names[row] for row in marked}})


DOORS = (gradient_analysis, flow, animator, animator_step_by_step, heat_map, terminal)


@pytest.mark.parametrize("begin", range(0, RUNS, BATCH))
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_no_door_contradicts_the_diagnosis(
    door: Callable[[int], Iterator[str]], begin: int
) -> None:
    assert [line for seed in range(begin, begin + BATCH) for line in door(seed)] == []


def test_the_made_runs_have_every_trouble_and_health() -> None:
    """Otherwise the doors would agree on nothing."""
    counts = {
        kind: sum(bool(expected(seed)[kind]) for seed in range(RUNS)) for kind in KINDS.values()
    }
    assert min(counts.values()) >= 40, counts
    assert sum(not named(seed) for seed in range(RUNS)) >= 60
    assert sum(judged(seed).worst is Severity.CRITICAL for seed in range(RUNS)) >= 100
