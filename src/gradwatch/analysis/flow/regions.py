"""Regions of neighbouring layers whose gradients vanish or explode, and zones that are dead.

Which layers these are, the findings say; on which steps, and how far beyond their limit, the limits
of the checks. Nothing is judged here.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.flow.network import Pairs
from gradwatch.analysis.layers import LayerSeries
from gradwatch.checks import limits
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.limits import Judgement, Trouble
from gradwatch.diagnosis.verdict import Verdict, verdicts
from gradwatch.errors import GradwatchError
from gradwatch.finding import Severity
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat, State

CURRENT = 5
"""A region is current that was seen on one of so many last samples."""
INTERVENE_AFTER = 50
"""Samples without a gradient after which a layer will hardly come back."""


class RegionSeverity(StrEnum):
    """Critical where the finding is; else how many decades a region lies beyond its limit."""

    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"
    CRITICAL = "Critical"


class RecoveryPotential(StrEnum):
    """Whether a dead layer may come back by itself."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "None"


_DECADES = {"vanishing": (0.5, 1.0), "exploding": (0.3, 0.6)}
"""Decades beyond the limit up to which a region is mild, moderate; then it is severe."""
_ADVICE = {
    "vanishing": (
        "Check the initialisation and the activations of these layers.",
        "Add normalisation or residual connections across them.",
        "In half precision check the loss scale: small gradients may be rounded to zero.",
    ),
    "exploding": (
        "Lower the learning rate or warm it up.",
        "Clip the global gradient norm.",
        "Look for a layer whose weights grew just before.",
    ),
}


class RegionExtent(Result):
    """Where a region lies, in layers and in steps."""

    start_layer: str
    end_layer: str
    affected_parameters: int | None
    duration_steps: int
    start_step: int
    end_step: int


class Region(Result):
    """Neighbouring layers whose gradients vanish or explode together."""

    region_id: str
    affected_layers: tuple[str, ...]
    severity_level: RegionSeverity
    extent: RegionExtent
    current: bool
    """Still so at the end of the run; past ones are listed too."""
    mitigation_suggestions: tuple[str, ...]


class GradientDeadZone(Result):
    """Neighbouring layers without any gradient."""

    zone_id: str
    affected_layers: tuple[str, ...]
    dead_duration: int
    """From the first step without a gradient to the last, in steps."""
    start_step: int
    recovery_potential: RecoveryPotential
    intervention_required: bool


def problems_of(
    run: Run, series: LayerSeries, pairs: Pairs
) -> tuple[tuple[Region, ...], tuple[Region, ...], tuple[GradientDeadZone, ...]]:
    """Regions that vanish, regions that explode, dead zones: what the findings say, as places.

    `pairs` are the columns of layers that are neighbours.
    """
    said, ctx = verdicts(run), context(run)
    vanishing, exploding, dead = (
        said.layers_with(kind) for kind in (Trouble.VANISHING, Trouble.EXPLODING, Trouble.DEAD)
    )
    low = limits.vanishing(ctx) if vanishing else ()
    high = [item] if exploding and (item := limits.exploding(ctx)) else []
    return (
        _regions("vanishing", ctx, series, pairs, _episodes(ctx, series, vanishing, low)),
        _regions("exploding", ctx, series, pairs, _episodes(ctx, series, exploding, high)),
        _dead_zones(ctx, series, pairs, dead),
    )


# -- layers that are neighbours and offend at the same time ----------------------------------------


@dataclass(slots=True)
class _Spell:
    """One layer from the first to the last row of the run on which something was wrong with it."""

    column: int
    first: int
    last: int
    depth: float = 0.0
    """Decades beyond the limit, in the middle of those rows."""
    samples: int = 0
    """Of a silence: those without a gradient."""
    potential: RecoveryPotential = RecoveryPotential.NONE
    severity: Severity = Severity.WARNING
    """Of the finding that names the layer."""


def _groups(spells: Mapping[int, _Spell], pairs: Pairs) -> list[list[_Spell]]:
    """Neighbours in the graph whose spells overlap in time belong together (union–find)."""
    parent = {column: column for column in spells}

    def root(column: int) -> int:
        while parent[column] != column:
            parent[column] = parent[parent[column]]
            column = parent[column]
        return column

    for a, b in pairs.tolist():
        one, other = spells.get(a), spells.get(b)
        if one and other and one.first <= other.last and other.first <= one.last:
            parent[root(b)] = root(a)
    groups: dict[int, list[_Spell]] = {}
    for column in sorted(spells):
        groups.setdefault(root(column), []).append(spells[column])
    return list(groups.values())


# -- regions ---------------------------------------------------------------------------------------


def _episodes(
    ctx: CheckContext,
    series: LayerSeries,
    named: Mapping[str, Verdict],
    judgements: Iterable[Judgement],
) -> dict[int, _Spell]:
    """Of every layer that findings name, by column."""
    at = {name: column for column, name in enumerate(series.names) if name in named}
    episodes = {}
    for name, column in at.items():
        steps = (named[name].first_step, named[name].last_step)
        first, last = np.searchsorted(ctx.steps, steps).tolist()
        # to be replaced by what is seen
        episodes[column] = _Spell(column, last, first, severity=named[name].severity)
    for parameter, rows, depth in _seen(ctx, judgements):
        episode = episodes.get(at.get(ctx.layer(parameter), -1))
        if episode is not None:
            episode.first = min(episode.first, int(rows[0]))
            episode.last = max(episode.last, int(rows[-1]))
            episode.depth = max(episode.depth, depth)
    for episode in episodes.values():  # named for another reason than its own norms
        episode.first, episode.last = sorted((episode.first, episode.last))
    return episodes


def _seen(
    ctx: CheckContext, judgements: Iterable[Judgement]
) -> Iterator[tuple[int, NDArray[np.intp], float]]:
    """Each parameter that is beyond its limit, on which rows, and by how many decades."""
    for item in judgements:
        if item.severity < Severity.WARNING:
            continue
        above = item.rule in (limits.Rule.HUGE, limits.Rule.SUDDEN)
        for parameter in item.columns.tolist():
            limit = float(item.limits[parameter])
            values = ctx.run.at(Stat.GRAD_NORM, item.rows, parameter)
            beyond = values > limit if above else values <= limit
            if math.isnan(limit):
                yield parameter, item.rows, 0.0  # named because it amplifies what the others have
            elif beyond.any():
                positive = values[beyond & (values > 0)]
                decades = np.log10(positive) - math.log10(limit)
                depth = abs(float(np.median(decades))) if len(positive) else 0.0
                yield parameter, item.rows[beyond], depth


def _regions(
    kind: str,
    ctx: CheckContext,
    series: LayerSeries,
    pairs: Pairs,
    episodes: Mapping[int, _Spell],
) -> tuple[Region, ...]:
    rows = limits.gradient_rows(ctx)
    recent = int(rows[-CURRENT:][0]) if len(rows) else 0
    unknown = missing("the sizes of these layers are not known")
    regions = []
    for group in _groups(episodes, pairs):
        names = tuple(series.names[episode.column] for episode in group)
        sizes = series.counts[[episode.column for episode in group]]
        size = int(sizes.sum()) if sizes.all() else unknown
        last = max(episode.last for episode in group)
        start, end = int(ctx.steps[min(e.first for e in group)]), int(ctx.steps[last])
        region = Region(
            f"{kind}:{names[0]}:{names[-1]}:{start}",
            names,
            _severity(kind, group),
            RegionExtent(names[0], names[-1], size, end - start + 1, start, end),
            last >= recent,
            _ADVICE[kind],
        )
        regions.append(region)
    return tuple(sorted(regions, key=lambda r: (not r.current, r.extent.start_step, r.region_id)))


def _severity(kind: str, group: list[_Spell]) -> RegionSeverity:
    if any(episode.severity is Severity.CRITICAL for episode in group):
        return RegionSeverity.CRITICAL
    beyond = bisect_left(_DECADES[kind], max(episode.depth for episode in group))
    return (RegionSeverity.MILD, RegionSeverity.MODERATE, RegionSeverity.SEVERE)[beyond]


# -- dead zones ------------------------------------------------------------------------------------


def _dead_zones(
    ctx: CheckContext,
    series: LayerSeries,
    pairs: Pairs,
    named: Mapping[str, Verdict],
) -> tuple[GradientDeadZone, ...]:
    found = limits.silent(ctx) if named else None
    if found is None:
        return ()
    at = {name: column for column, name in enumerate(series.names) if name in named}
    silences: dict[int, _Spell] = {}
    for parameter in found.columns.tolist():
        column = at.get(ctx.layer(parameter))
        if column is not None and column not in silences:
            silences[column] = _silence(ctx, found, column, parameter)
    zones = []
    for potential in RecoveryPotential:
        alike = {c: silence for c, silence in silences.items() if silence.potential is potential}
        for group in _groups(alike, pairs):
            layers = tuple(series.names[silence.column] for silence in group)
            start = int(ctx.steps[min(silence.first for silence in group)])
            end = int(ctx.steps[max(silence.last for silence in group)])
            long = any(silence.samples >= INTERVENE_AFTER for silence in group)
            needed = potential is RecoveryPotential.NONE or long
            zone_id = f"dead:{layers[0]}:{start}"
            zones.append(
                GradientDeadZone(zone_id, layers, end - start + 1, start, potential, needed)
            )
    return tuple(sorted(zones, key=lambda zone: (zone.start_step, zone.zone_id)))


def _silence(ctx: CheckContext, found: limits.Silence, column: int, parameter: int) -> _Spell:
    onset = int(found.onset[parameter])
    rows = ctx.run.sampled(Stat.GRAD_NORM)
    rows = rows[: np.searchsorted(rows, ctx.end)]
    norms = ctx.run.at(Stat.GRAD_NORM, rows, parameter)
    states = ctx.run.states_at(Stat.GRAD_NORM, rows, parameter)
    empty = (states == State.NO_GRADIENT) | (norms == 0)
    looked = empty | np.isfinite(norms)
    rows, silent = rows[looked], empty[looked]
    before = int(np.searchsorted(rows, onset))
    samples = int(silent[before:].sum())
    turns = np.flatnonzero(np.diff(np.concatenate([[0], silent[:before].view(np.int8), [0]])))
    if found.absent[parameter]:  # detached
        potential = RecoveryPotential.NONE
    elif (turns[1::2] - turns[::2] >= samples / 2).any():  # it revived from such a silence before
        potential = RecoveryPotential.HIGH
    else:
        alive = _outputs_alive(ctx.run, ctx.layer(parameter))
        potential = RecoveryPotential.MEDIUM if alive else RecoveryPotential.LOW
    return _Spell(column, onset, int(rows[silent][-1]), samples=samples, potential=potential)


def _outputs_alive(run: Run, layer: str) -> bool:
    try:
        spread = run.column(Stat.ACT_STD, layer)
    except GradwatchError:  # the layer has no series of its own
        return False
    measured = spread[np.isfinite(spread)]
    return bool(len(measured) and measured[-1] > 0)
