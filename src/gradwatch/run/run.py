"""`Run`: what was recorded, as read-only arrays that are loaded on first use.

Below it, how arrays or norms that somebody hands in become a run without any store.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.graph import Graph
from gradwatch.kernel import measure_arrays
from gradwatch.notebook import cell, facts, line_chart
from gradwatch.run.downsample import Window
from gradwatch.run.source import Loaded, MemorySource, Source
from gradwatch.run.subject import Event, Histogram, Subject, layer_of
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State, entry, family_stats
from gradwatch.text import markup

CHART_POINTS = 120


class Run:
    """One training, checkpoint or set of arrays: steps, subjects, series, scalars, events, graph.

    NaN in a series means "no finite value"; `state(stat)` says why.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.series = SeriesByStat(self)
        self._loaded: dict[Stat, Loaded] = {}

    # -- what there is ---------------------------------------------------------------------------

    @property
    def steps(self) -> NDArray[np.int64]:
        """The recorded training steps in ascending order: the rows of every series."""
        return self.source.steps

    @property
    def subjects(self) -> Sequence[Subject]:
        """Everything that has a series: parameters, layers, optimizer groups."""
        return self.source.subjects

    @cached_property
    def by_kind(self) -> dict[Kind, tuple[Subject, ...]]:
        """The subjects of each kind, in the order of the columns of its series."""
        return {kind: tuple(s for s in self.subjects if s.kind is kind) for kind in Kind}

    @cached_property
    def parameters(self) -> tuple[Subject, ...]:
        """The parameters: the columns of every gradient, weight and update series."""
        return self.by_kind[Kind.PARAMETER]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Parameter names as `named_parameters()` gives them on the bare model."""
        return tuple(subject.name for subject in self.parameters)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Every layer that owns a parameter or has a series of its own, in forward order."""
        positions: dict[str, int] = {}
        for subject in self.subjects:
            if subject.kind is Kind.GROUP:
                continue
            layer = subject.name if subject.kind is Kind.LAYER else subject.layer
            # Layers that no forward pass has met come last.
            position = subject.order if subject.order is not None else 1 << 30
            positions[layer] = min(positions.get(layer, position), position)
        return tuple(
            sorted(positions, key=positions.__getitem__)
        )  # sorted is stable: then as registered

    @property
    def recorded(self) -> frozenset[Stat]:
        """The statistics this run has values of; other series are NaN throughout."""
        return self.source.recorded

    @property
    def scalars(self) -> Mapping[str, NDArray[np.float64]]:
        """By name, aligned with `steps`; NaN where nothing was logged."""
        return self.source.scalars

    @property
    def events(self) -> Sequence[Event]:
        """What happened at a step and is no number, by step."""
        return self.source.events

    @cached_property
    def graph(self) -> Graph:
        """The layer graph; where none was recorded, the layers in order, marked as assumed."""
        return self.source.graph or Graph.chain(self.layers)

    @property
    def info(self) -> Mapping[str, Any]:
        """Notes about the run: name, versions, options, whether it is complete."""
        return self.source.info

    @property
    def ranks(self) -> Mapping[int, "Run"]:
        """Each rank's own run: its loss, its batch, its shards. One process is its only rank."""
        # Not part of `Source`: only run folders have ranks.
        ranks: Mapping[int, Run] | None = getattr(self.source, "ranks", None)
        return ranks or {0: self}

    # -- reading ---------------------------------------------------------------------------------

    def state(self, stat: Stat | str) -> NDArray[np.uint8]:
        """A `State` for every value of `series[stat]`."""
        return self._load(_stat(stat)).states

    def integers(self, stat: Stat | str) -> NDArray[np.uint64]:
        """A 64-bit column exactly (float64 would round hashes and counts above 2^53)."""
        return self.source.integers(_stat(stat))

    def histograms(self, family: Family | str, name: str) -> Mapping[int, Histogram]:
        """The histograms of one parameter's gradient or weight, by step."""
        return self.source.histograms(Family(family), name)

    def index(self, name: str, kind: Kind = Kind.PARAMETER) -> int:
        """Column of a subject in the series of its kind."""
        try:
            return self._columns[kind, name]
        except KeyError:
            raise GradwatchError(f"This run has no {kind} named {name!r}.", Exit.USAGE) from None

    def column(self, stat: Stat | str, name: str) -> NDArray[np.float64]:
        """One subject's series."""
        stat = _stat(stat)
        return self.series[stat][:, self.index(name, entry(stat).kind)]

    def measured(self, stat: Stat | str) -> NDArray[np.bool_]:
        """Where a value was really measured (sampled, partial and clipped ones included)."""
        measured: NDArray[np.bool_] = HAS_VALUE[self.state(stat)]
        return measured

    def window(self, first: int | None = None, last: int | None = None, *, points: int) -> Window:
        """Some steps of the run, downsampled without losing an extreme."""
        low = int(self.steps[0]) if len(self.steps) else 0
        high = int(self.steps[-1]) if len(self.steps) else 0
        return Window(self, low if first is None else first, high if last is None else last, points)

    def _load(self, stat: Stat) -> Loaded:
        if stat not in self._loaded:
            loaded = self.source.load(stat) if stat in self.recorded else self._absent(stat)
            # Everybody who asks for this statistic gets the same arrays: nobody may change them.
            loaded.values.setflags(write=False)
            loaded.states.setflags(write=False)
            self._loaded[stat] = loaded
        return self._loaded[stat]

    def _absent(self, stat: Stat) -> Loaded:
        shape = (len(self.steps), len(self.by_kind[entry(stat).kind]))
        wide = shape if entry(stat).width == 1 else (*shape, entry(stat).width)
        return Loaded(np.full(wide, np.nan), np.full(shape, State.NOT_SAMPLED, np.uint8))

    @cached_property
    def _columns(self) -> dict[tuple[Kind, str], int]:
        return {
            (kind, subject.name): column
            for kind, subjects in self.by_kind.items()
            for column, subject in enumerate(subjects)
        }

    def __repr__(self) -> str:
        name = self.info.get("name", "in memory")
        return f"<Run {name!r}: {len(self.steps)} steps, {len(self.names)} parameters>"

    def _repr_html_(self) -> str:
        """Name, size, what was recorded, and the loss as a line."""
        name = markup(str(self.info.get("name", "run in memory")), 80)
        extent = f" ({self.steps[0]} to {self.steps[-1]})" if len(self.steps) else ""
        families = sorted({str(stat).partition("_")[0] for stat in self.recorded})
        scalars = ", ".join(markup(scalar, 60) for scalar in sorted(self.scalars)[:12])
        rows = {
            "steps": f"{len(self.steps)}{extent}",
            "layers, parameters": f"{len(self.layers)}, {len(self.names)}",
            "recorded": ", ".join(families) or "nothing",
            "scalars": scalars or "none",
        }
        table = facts((head, cell(text)) for head, text in rows.items())
        return f"<div><b>{name}</b>{table}{self._loss_chart()}</div>"

    def _loss_chart(self) -> str:
        if "loss" not in self.scalars or not len(self.steps):
            return ""
        losses = self.window(points=CHART_POINTS).scalar("loss").last[:, 0]
        finite = losses[np.isfinite(losses)]
        if len(finite) < 2:
            return ""
        return line_chart(losses.tolist(), f"loss from {finite[0]:.3g} to {finite[-1]:.3g}")

    # -- making ----------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        gradients: Mapping[str, Sequence[ArrayLike | None]] | None = None,
        weights: Mapping[str, Sequence[ArrayLike | None]] | None = None,
        *,
        steps: Sequence[int] | None = None,
        scalars: Mapping[str, Sequence[float]] | None = None,
    ) -> "Run":
        """From arrays per name, one for each step; None stands for "no gradient"."""
        return cls(source_from_arrays(gradients or {}, weights or {}, steps, scalars or {}))

    @classmethod
    def from_norms(
        cls,
        norms: Mapping[str, Sequence[float]],
        *,
        steps: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        scalars: Mapping[str, Sequence[float]] | None = None,
    ) -> "Run":
        """From gradient norms per name; a NaN or Inf among them means non-finite, not unsampled."""
        return cls(source_from_norms(norms, steps, scalars or {}))


class SeriesByStat(Mapping[Stat, NDArray[np.float64]]):
    """`run.series[stat]` → read-only float64 [step, subject of its kind], loaded on first use."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, stat: Stat | str) -> NDArray[np.float64]:
        return self._run._load(_stat(stat)).values

    def __iter__(self) -> Iterator[Stat]:
        return iter(stat for stat in Stat if stat in self._run.recorded)

    def __len__(self) -> int:
        return len(self._run.recorded)

    def __contains__(self, stat: object) -> bool:
        return stat in self._run.recorded


def _stat(stat: Stat | str) -> Stat:
    try:
        return Stat(stat)
    except ValueError:
        names = ", ".join(Stat)
        raise GradwatchError(
            f"There is no statistic {stat!r}; known: {names}.", Exit.USAGE
        ) from None


MEASURED = frozenset(
    {"count", "norm", "mean", "std", "skewness", "kurtosis", "abs_mean", "abs_max", "min", "max"}
    | {"zero_fraction", "nan", "inf", "zero_rows"}
)


def source_from_arrays(
    gradients: Mapping[str, Sequence[ArrayLike | None]],
    weights: Mapping[str, Sequence[ArrayLike | None]],
    steps: Sequence[int] | None,
    scalars: Mapping[str, Sequence[float]],
) -> MemorySource:
    """Measure every array and lay the statistics out by step and parameter."""
    names = tuple(dict.fromkeys((*gradients, *weights)))
    lengths = {len(listed) for table in (gradients, weights) for listed in table.values()}
    if len(lengths) > 1:
        raise GradwatchError(
            f"Expected as many arrays for every name, got lists of {sorted(lengths)}. "
            "Use None where a step has no gradient.",
            Exit.USAGE,
        )
    grid = _steps(steps, lengths.pop() if lengths else 0)
    values: dict[Stat, NDArray[np.float64]] = {}
    states: dict[Stat, NDArray[np.uint8]] = {}
    for family, table in ((Family.GRAD, gradients), (Family.WEIGHT, weights)):
        if table:
            _measure(family, table, names, len(grid), values, states)
    subjects = tuple(
        _subject(name, gradients.get(name) or weights.get(name) or ()) for name in names
    )
    return MemorySource(grid, subjects, values, states, scalars=_scalars(scalars, len(grid)))


def source_from_norms(
    norms: Mapping[str, Sequence[float]],
    steps: Sequence[int] | Mapping[str, Sequence[int]] | None,
    scalars: Mapping[str, Sequence[float]],
) -> MemorySource:
    """Lay gradient norms out on the union of all steps, with a state for every cell."""
    per_layer = steps if isinstance(steps, Mapping) else dict.fromkeys(norms, steps)
    layer_steps = {name: _steps(per_layer.get(name), len(listed)) for name, listed in norms.items()}
    grid = np.unique(np.concatenate([*layer_steps.values(), np.empty(0, np.int64)]))
    shape = (len(grid), len(norms))
    norm, bad = np.full(shape, np.nan), np.zeros(shape)
    states = np.full(shape, State.NOT_SAMPLED, np.uint8)
    for column, (name, listed) in enumerate(norms.items()):
        rows = np.searchsorted(grid, layer_steps[name])
        given = np.asarray(listed, np.float64)
        norm[rows, column] = np.where(np.isfinite(given), given, np.nan)
        # A NaN or infinite norm is a measurement (the gradient was not finite), not a gap.
        bad[rows, column] = ~np.isfinite(given)
        states[rows, column] = State.MEASURED
    bad[states == State.NOT_SAMPLED] = np.nan
    return MemorySource(
        grid,
        tuple(_subject(name, ()) for name in norms),
        {Stat.GRAD_NORM: norm, Stat.GRAD_NAN: bad},
        {Stat.GRAD_NORM: states, Stat.GRAD_NAN: states},
        scalars=_scalars(scalars, len(grid)),
    )


def _measure(
    family: Family,
    table: Mapping[str, Sequence[ArrayLike | None]],
    names: Sequence[str],
    length: int,
    values: dict[Stat, NDArray[np.float64]],
    states: dict[Stat, NDArray[np.uint8]],
) -> None:
    shape = (length, len(names))
    state = np.full(shape, State.NOT_SAMPLED, np.uint8)
    stats = [
        (item.stat, field)
        for item in family_stats(family)
        if (field := item.stat.removeprefix(f"{family}_")) in MEASURED
    ]
    for stat, _ in stats:
        values[stat], states[stat] = np.full(shape, np.nan), state
    for column, name in enumerate(names):
        for row, array in enumerate(table.get(name, ())):
            if array is None:
                state[row, column] = State.NO_GRADIENT
                continue
            # One by one: of arrays that the kernel cannot read in place, only one copy is alive.
            (moments,) = measure_arrays([np.asarray(array)])
            state[row, column] = State.MEASURED
            for stat, field in stats:
                values[stat][row, column] = _value(moments, field)


def _value(moments: np.void, field: str) -> float:
    """One statistic of a measured tensor, by its name without the family."""
    if field == "inf":
        return float(moments["pos_inf"]) + float(moments["neg_inf"])
    if field == "zero_fraction":
        return float(moments["zeros"]) / float(moments["count"]) if moments["count"] else np.nan
    return float(moments[field])


def _subject(name: str, listed: Sequence[ArrayLike | None]) -> Subject:
    first = next((np.asarray(array) for array in listed if array is not None), None)
    layer = layer_of(name)
    if first is None:
        return Subject(Kind.PARAMETER, name, layer)
    return Subject(
        Kind.PARAMETER, name, layer, shape=first.shape, dtype=str(first.dtype), count=first.size
    )


def _steps(steps: Sequence[int] | None, length: int) -> NDArray[np.int64]:
    grid = np.arange(length) if steps is None else np.asarray(steps, np.int64)
    if len(grid) != length or (np.diff(grid) <= 0).any():
        raise GradwatchError(
            f"Expected {length} increasing step numbers, got {grid.tolist()[:8]}.", Exit.USAGE
        )
    return grid.astype(np.int64)


def _scalars(scalars: Mapping[str, Sequence[float]], length: int) -> dict[str, NDArray[np.float64]]:
    table = {name: np.asarray(listed, np.float64) for name, listed in scalars.items()}
    for name, listed in table.items():
        if len(listed) != length:
            raise GradwatchError(
                f"Expected {length} values of {name!r}, one per step, got {len(listed)}.",
                Exit.USAGE,
            )
    return table
