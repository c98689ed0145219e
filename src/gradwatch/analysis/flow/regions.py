"""Regions of neighbouring layers whose gradients vanish or explode, and zones that are dead."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat, State
from gradwatch.stats.medians import median

FADED = 1e-4
"""Vanishing: RMS under this share of the strongest layer's on the same step."""
GROWN = 1e3
"""Exploding: RMS over this multiple of the layer's own median in the first tenth of the run."""
FEWEST = 5
"""Samples an episode must last."""
DEAD_FOR = 10
INTERVENE_AFTER = 50


class RegionSeverity(StrEnum):
    """How many decades a region lies beyond the rule."""

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


_LEVELS = (RegionSeverity.MILD, RegionSeverity.MODERATE, RegionSeverity.SEVERE)
_LIMITS = {"vanishing": (0.5, 1.0, 2.0), "exploding": (0.3, 0.6, 1.0)}
"""Decades beyond the rule up to which a region is mild, moderate, severe; then it is critical."""
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


@dataclass(frozen=True)
class RegionExtent(Result):
    """Where a region lies, in layers and in steps."""

    start_layer: str
    end_layer: str
    affected_parameters: int
    duration_steps: int
    start_step: int
    end_step: int


@dataclass(frozen=True)
class Region(Result):
    """Neighbouring layers whose gradients vanish or explode together."""

    region_id: str
    affected_layers: tuple[str, ...]
    severity_level: RegionSeverity
    extent: RegionExtent
    current: bool
    """Still so at the end of the run; past episodes are listed too."""
    mitigation_suggestions: tuple[str, ...]


@dataclass(frozen=True)
class GradientDeadZone(Result):
    """A layer without any gradient at the end of the run."""

    zone_id: str
    affected_layers: tuple[str, ...]
    dead_duration: int
    start_step: int
    recovery_potential: RecoveryPotential
    intervention_required: bool


def vanishing_regions(series: LayerSeries, pairs: list[tuple[int, int]]) -> tuple[Region, ...]:
    """Where the gradient is far below that of the strongest layer."""
    rms = np.where(series.rms > 0, series.rms, np.nan)
    strongest = np.where(rms > 0, rms, -np.inf).max(axis=1, initial=-np.inf)
    strongest = np.where(np.isfinite(strongest), strongest, np.nan)
    with np.errstate(invalid="ignore"):
        decades = np.log10(strongest)[:, None] - np.log10(rms) + np.log10(FADED)
    return _regions("vanishing", series, pairs, decades)


def exploding_regions(series: LayerSeries, pairs: list[tuple[int, int]]) -> tuple[Region, ...]:
    """Where the gradient is far above its own beginning, or not finite."""
    rms = np.where(series.rms > 0, series.rms, np.nan)
    early = np.array([_early(column[np.isfinite(column)]) for column in rms.T])
    decades = np.log10(rms) - np.log10(early) - np.log10(GROWN)
    decades = np.where(series.nonfinite > 0, np.inf, decades)
    return _regions("exploding", series, pairs, decades)


def _early(rms: NDArray[np.float64]) -> float:
    return median(rms[: max(len(rms) // 10, 1)])


@dataclass(frozen=True, slots=True)
class _Episode:
    column: int
    first: int
    last: int
    depth: float


def _regions(
    kind: str,
    series: LayerSeries,
    pairs: list[tuple[int, int]],
    decades: NDArray[np.float64],
) -> tuple[Region, ...]:
    """`decades` [step, layer] beyond the rule: offending above 0, not measured where NaN."""
    episodes = [
        episode
        for column in range(len(series.names))
        for episode in _episodes(column, decades[:, column])
    ]
    groups = _merged(episodes, series.names, pairs)
    regions = [_region(kind, series, group) for group in groups]
    return tuple(sorted(regions, key=lambda r: (not r.current, r.extent.start_step, r.region_id)))


def _episodes(column: int, decades: NDArray[np.float64]) -> list[_Episode]:
    """Runs of offending samples; a sample that was not taken neither breaks nor lengthens one."""
    rows = np.flatnonzero(~np.isnan(decades))
    return [
        _Episode(column, int(rows[a]), int(rows[b - 1]), float(np.median(decades[rows[a:b]])))
        for a, b in _stretches(decades[rows] > 0)
        if b - a >= FEWEST or np.isinf(decades[rows[a:b]]).any()
    ]


def _stretches(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Begin and end of each run of flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.view(np.int8), [0]])))
    return edges.reshape(-1, 2)


def _merged(
    episodes: list[_Episode], names: tuple[str, ...], pairs: list[tuple[int, int]]
) -> list[list[_Episode]]:
    """Neighbours in the graph whose episodes overlap in time become one region (union–find)."""
    parent = list(range(len(episodes)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    by_column: dict[int, list[int]] = {}
    for i, episode in enumerate(episodes):
        by_column.setdefault(episode.column, []).append(i)
    for a, b in pairs:
        for i in by_column.get(a, ()):
            for j in by_column.get(b, ()):
                if episodes[i].first <= episodes[j].last and episodes[j].first <= episodes[i].last:
                    parent[root(j)] = root(i)
    groups: dict[int, list[_Episode]] = {}
    for i, episode in enumerate(episodes):
        groups.setdefault(root(i), []).append(episode)
    return list(groups.values())


def _region(kind: str, series: LayerSeries, group: list[_Episode]) -> Region:
    columns = sorted({episode.column for episode in group})
    first, last = min(e.first for e in group), max(e.last for e in group)
    start, end = int(series.steps[first]), int(series.steps[last])
    names = tuple(series.names[column] for column in columns)
    parameters = int(series.counts[columns].sum())
    depth = max(episode.depth for episode in group)
    severity = next(
        (level for limit, level in zip(_LIMITS[kind], _LEVELS, strict=True) if depth <= limit),
        RegionSeverity.CRITICAL,
    )
    return Region(
        f"{kind}:{names[0]}:{names[-1]}:{start}",
        names,
        severity,
        RegionExtent(names[0], names[-1], parameters, end - start + 1, start, end),
        last >= len(series.steps) - FEWEST,
        _ADVICE[kind],
    )


def dead_zones(run: Run, series: LayerSeries) -> tuple[GradientDeadZone, ...]:
    """Layers whose gradient is exactly zero, or absent, on the last samples of the run."""
    zones = []
    absent = _absent(run, series)
    for column, name in enumerate(series.names):
        norms = series.norms[:, column]
        rows = np.flatnonzero(np.isfinite(norms) | absent[:, column])
        silent = absent[rows, column] | (norms[rows] == 0)
        length = _trailing(silent)
        if length < DEAD_FOR:
            continue
        start, end = int(series.steps[rows[-length]]), int(series.steps[rows[-1]])
        detached = bool(absent[rows[-1], column])
        potential = _recovery(run, name, silent, length, detached)
        grave = potential is RecoveryPotential.NONE or length >= INTERVENE_AFTER
        identity = f"dead:{name}:{start}"
        zones.append(GradientDeadZone(identity, (name,), end - start + 1, start, potential, grave))
    return tuple(zones)


def _trailing(flags: NDArray[np.bool_]) -> int:
    alive = np.flatnonzero(~flags)
    return len(flags) - 1 - int(alive[-1]) if len(alive) else len(flags)


def _absent(run: Run, series: LayerSeries) -> NDArray[np.bool_]:
    """Steps on which no parameter of the layer had a gradient at all."""
    rows = np.searchsorted(run.steps, series.steps)
    without = run.state(Stat.GRAD_NORM)[rows] == State.NO_GRADIENT
    columns: dict[str, list[int]] = {}
    for column, subject in enumerate(run.parameters):
        columns.setdefault(subject.layer, []).append(column)
    absent = np.zeros(series.norms.shape, bool)
    for i, name in enumerate(series.names):
        absent[:, i] = without[:, columns[name]].all(axis=1)
    return absent


def _recovery(
    run: Run, name: str, silent: NDArray[np.bool_], length: int, detached: bool
) -> RecoveryPotential:
    """None: detached. High: it revived from such a silence before. Else: do its outputs live?"""
    if detached:
        return RecoveryPotential.NONE
    if any(end - begin >= length / 2 for begin, end in _stretches(silent[:-length])):
        return RecoveryPotential.HIGH
    alive = _outputs_alive(run, name)
    return RecoveryPotential.MEDIUM if alive else RecoveryPotential.LOW


def _outputs_alive(run: Run, name: str) -> bool:
    if Stat.ACT_STD not in run.recorded:
        return False
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    if name not in names:
        return False
    spread = run.series[Stat.ACT_STD][:, names.index(name)]
    measured = spread[np.isfinite(spread)]
    return bool(len(measured) and measured[-1] > 0)
