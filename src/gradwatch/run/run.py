"""`Run`: what was recorded, as read-only arrays that are loaded on first use."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.notebook import cell, facts, line_chart
from gradwatch.run.arrays import source_from_arrays
from gradwatch.run.downsample import Window
from gradwatch.run.given import choice, refused, series_by_name, source_from_norms
from gradwatch.run.source import ALL, Loaded, Source
from gradwatch.run.subject import Event, EventKind, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat
from gradwatch.text import markup

CHART_POINTS = 120


class Run:
    """One training, checkpoint or set of arrays: steps, subjects, series, scalars, events, graph.

    NaN in a series means "no finite value"; `state(stat)` says why.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.series = SeriesByStat(self)
        # Two threads may load the same statistic; the later one is kept.
        self._loaded: dict[Stat, Loaded] = {}
        self._wholes: dict[Stat, Loaded] = {}

    # -- what there is ---------------------------------------------------------------------------

    @property
    def steps(self) -> NDArray[np.int64]:
        """The recorded training steps in ascending order: the rows of every series."""
        return self.source.steps

    @property
    def subjects(self) -> Sequence[Subject]:
        """Everything that has a series: parameters, layers, optimizer groups."""
        return self.source.subjects

    @property
    def step_count(self) -> int:
        """How many steps the optimizer has made, those of which nothing was recorded included.

        The last of `steps` may be none of them: a finished recording takes a sample of the weights
        after the last update, before a step that does not come.
        """
        if "complete" not in self.info or not len(self.steps):
            return len(self.steps)  # arrays, a checkpoint: all there is was handed over
        return self.last_step - int(self.steps[0]) + 1

    @property
    def last_step(self) -> int:
        """The last step that was made; one before the first where none was, -1 of an empty run."""
        if not len(self.steps):
            return -1
        if self.info.get("without_step"):
            return int(self.steps[0]) - 1
        last = int(self.steps[-1])
        closed = any(e.kind is EventKind.CLOSED and e.step == last - 1 for e in self.events)
        return last - 1 if closed else last

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
        # `sorted` is stable: those of the same position stay as they were registered.
        return tuple(sorted(positions, key=positions.__getitem__))

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
        return self._whole(_stat(stat)).states

    def sampled(self, stat: Stat | str) -> NDArray[np.intp]:
        """The rows in which anything of a statistic may have been recorded; few, often."""
        rows = self._load(_stat(stat)).rows
        return np.arange(len(self.steps)) if rows is None else rows

    def at(self, stat: Stat | str, rows: Any, columns: Any = ALL) -> NDArray[np.float64]:
        """`series[stat][rows, columns]` without making the whole series, which may be large."""
        return self._load(_stat(stat)).at(rows, columns)

    def states_at(self, stat: Stat | str, rows: Any, columns: Any = ALL) -> NDArray[np.uint8]:
        """`state(stat)[rows, columns]`, likewise."""
        return self._load(_stat(stat)).states_at(rows, columns)

    def integers(self, stat: Stat | str) -> NDArray[np.uint64]:
        """A 64-bit column exactly (float64 would round hashes and counts above 2^53)."""
        return self.source.integers(_stat(stat))

    def histograms(self, family: Family | str, name: str) -> Mapping[int, Histogram]:
        """The histograms of one parameter's gradient or weight, by step."""
        return self.source.histograms(Family(family), name)

    def index(self, name: str, kind: Kind = Kind.PARAMETER) -> int:
        """Column of a subject in the series of its kind."""
        for column, subject in enumerate(self.by_kind[kind]):
            if subject.name == name:
                return column
        raise refused(f"the name of a {kind} of this run", name)

    def column(self, stat: Stat | str, name: str) -> NDArray[np.float64]:
        """One subject's series."""
        column = self.index(name, _stat(stat).kind)
        return self.at(stat, np.arange(len(self.steps)), column)

    def measured(self, stat: Stat | str) -> NDArray[np.bool_]:
        """Where a value was really measured (sampled, partial and clipped ones included)."""
        return np.asarray(HAS_VALUE[self.state(stat)])

    def measured_rows(self, stat: Stat | str) -> NDArray[np.intp]:
        """The rows in which at least one value was."""
        rows = self.sampled(stat)
        return rows[HAS_VALUE[self.states_at(stat, rows)].any(axis=1)]

    def window(self, first: int | None = None, last: int | None = None, *, points: int) -> Window:
        """Some steps of the run, downsampled without losing an extreme."""
        low = int(self.steps[0]) if len(self.steps) else 0
        high = int(self.steps[-1]) if len(self.steps) else 0
        return Window(self, low if first is None else first, high if last is None else last, points)

    @cached_property
    def thinned(self) -> "Run | None":
        """The run as its coarse rows show it; None where it has none."""
        # Not part of `Source`: only run folders have coarse rows.
        source: Source | None = getattr(self.source, "thinned", None)
        return Run(source) if source else None

    def _load(self, stat: Stat) -> Loaded:
        if stat not in self._loaded:
            recorded = stat in self.recorded
            self._loaded[stat] = self.source.load(stat) if recorded else self._absent(stat)
        return self._loaded[stat]

    def _whole(self, stat: Stat) -> Loaded:
        if stat not in self._wholes:
            self._wholes[stat] = self._load(stat).whole(len(self.steps))
        return self._wholes[stat]

    def _absent(self, stat: Stat) -> Loaded:
        """What was not recorded has no rows."""
        shape = 0, len(self.by_kind[stat.kind])
        return Loaded(np.empty(shape), np.empty(shape, np.uint8), np.empty(0, np.intp))

    def __repr__(self) -> str:
        name = self.info.get("name", "in memory")
        return f"<Run {name!r}: {self.step_count} steps, {len(self.names)} parameters>"

    def _repr_html_(self) -> str:
        """Name, size, what was recorded, and the loss as a line."""
        name = markup(str(self.info.get("name", "run in memory")), 80)
        extent = f" ({self.steps[0]} to {self.last_step})" if self.step_count else ""
        rows = {
            "steps": f"{self.step_count}{extent}",
            "layers, parameters": f"{len(self.layers)}, {len(self.names)}",
            "recorded": ", ".join(sorted({stat.family for stat in self.recorded})) or "nothing",
        }
        table, chart = facts((head, cell(text)) for head, text in rows.items()), ""
        if "loss" in self.scalars:
            losses = self.window(points=CHART_POINTS).scalar("loss").last[:, 0]
            finite = losses[np.isfinite(losses)]
            if len(finite) > 1:
                caption = f"loss from {finite[0]:.3g} to {finite[-1]:.3g}"
                chart = line_chart(losses.tolist(), caption)
        return f"<div><b>{name}</b>{table}{chart}</div>"

    # -- making ----------------------------------------------------------------------------------

    @classmethod
    def from_arrays(
        cls,
        gradients: Mapping[str, Any] | None = None,
        weights: Mapping[str, Any] | None = None,
        *,
        steps: Sequence[int] | None = None,
        scalars: Mapping[str, Any] | None = None,
    ) -> "Run":
        """From arrays or torch tensors per name, one for each step; None means "no gradient".

        Each name is a layer of its own. Measured is what a recording would hold: moments, dead
        rows, cosines (here of whole gradients), and with both gradients and weights (as they are
        before the step) the updates between steps that follow one another.
        """
        return cls(source_from_arrays(gradients, weights, steps, scalars))

    @classmethod
    def from_norms(
        cls,
        norms: Mapping[str, Any],
        *,
        steps: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        scalars: Mapping[str, Any] | None = None,
    ) -> "Run":
        """From gradient norms per name, each a layer of its own, of unknown size (count 0).

        A NaN or Inf among them means that the gradient was not finite, None that there was none.
        """
        return cls(source_from_norms(norms, steps, scalars))


class SeriesByStat(Mapping[Stat, NDArray[np.float64]]):
    """`run.series[stat]` → read-only float64 [step, subject of its kind], loaded on first use."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, stat: Stat | str) -> NDArray[np.float64]:
        return self._run._whole(_stat(stat)).values

    def __iter__(self) -> Iterator[Stat]:
        return iter(stat for stat in Stat if stat in self._run.recorded)

    def __len__(self) -> int:
        return len(self._run.recorded)

    def __contains__(self, stat: object) -> bool:
        return stat in self._run.recorded


def _stat(stat: Stat | str) -> Stat:
    return choice(Stat, stat, "the statistic")


def as_run(data: Any, *, steps: Any = None, scalars: Any = None) -> Run:
    """A `Run` from what analyses are handed: a run itself, or norms or arrays by name.

    `{name: [norm, …]}` or `{name: [array, …]}`, one for each step, None where there was no
    gradient; an array of more dimensions is cut along its first axis. A list of such is named by
    position. Everything else is refused in one sentence.
    """
    if isinstance(data, Run):
        if steps is not None or scalars is not None:
            raise refused("norms or arrays beside steps or scalars", data, "A run has its own.")
        return data
    listed, arrays = series_by_name(data)
    if arrays:
        return Run.from_arrays(listed, steps=steps, scalars=scalars)
    return Run.from_norms(listed, steps=steps, scalars=scalars)
