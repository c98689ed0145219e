"""Several ranks as one run: copies count once, shards of a tensor and of a batch are merged.

The rule by which each statistic of the whole comes from those of its parts is in `RULES`. Its
functions take arrays [part, step, subject], in which absent parts are NaN, and join them in the
order of the ranks, cell by cell, so that the same folders always give the same bits.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.kernel.batch import MomentSums
from gradwatch.run.downsample import Downsampled
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Event, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State
from gradwatch.store.chunks import distinct
from gradwatch.store.rank import RankSource

_UNKNOWN = (State.NOT_SAMPLED, State.DAMAGED)

RankPlaces = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Where a rank's steps are among those of the run, and which are of the newest attempt."""


class MergedSource:
    """Implements `Source` over the ranks of one run. On every step the newest attempt that any
    rank has counts: ranks that resumed and ranks that did not are never mixed within a step."""

    def __init__(self, sources: Sequence[RankSource]) -> None:
        self.sources = list(sources)
        self._shards: dict[Kind, Shards] = {}

    @cached_property
    def ranks(self) -> dict[int, Run]:
        """Each rank's own run: its own loss, its own batch."""
        return {source.rank: Run(source) for source in self.sources}

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step that any rank has."""
        return distinct(np.concatenate([source.steps for source in self.sources]))

    @cached_property
    def places(self) -> list[RankPlaces]:
        """For each rank, where its steps stand in `steps` and which of them count."""
        newest = np.full(len(self.steps), -1)
        by_rank = []
        for source in self.sources:
            at = np.searchsorted(self.steps, source.steps)
            attempts = np.array([a.number for a in source.attempts] or [0])[source.owners]
            newest[at] = np.maximum(newest[at], attempts)
            by_rank.append((at, attempts))
        return [(at, attempts == newest[at]) for at, attempts in by_rank]

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        """Every subject once, with the shape of the whole tensor rather than of a shard."""
        subjects: dict[tuple[Kind, str], Subject] = {}
        for source in self.sources:
            for subject in source.subjects:
                subjects.setdefault((subject.kind, subject.name), _unsharded(subject))
        return tuple(subjects.values())

    @cached_property
    def recorded(self) -> frozenset[Stat]:
        """What at least one rank recorded."""
        return frozenset().union(*(source.recorded for source in self.sources))

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        """The value of the lowest rank that logged one; `ranks` has each rank's own."""
        table: dict[str, NDArray[np.float64]] = {}
        for source, (at, current) in zip(self.sources, self.places, strict=True):
            for name, values in source.scalars.items():
                column = table.setdefault(name, np.full(len(self.steps), np.nan))
                use = current & np.isnan(column[at])
                column[at[use]] = values[use]
        for column in table.values():
            column.setflags(write=False)
        return table

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all ranks by step; each names its rank."""
        events = [event for source in self.sources for event in source.events]
        return tuple(sorted(events, key=lambda event: event.step))

    @property
    def graph(self) -> Graph | None:
        """The layer graph of the lowest rank that stored one."""
        return next((s.graph for s in self.sources if s.graph is not None), None)

    @cached_property
    def info(self) -> dict[str, Any]:
        """The lowest rank's notes, completed by the others'; complete only if every rank is."""
        merged: dict[str, Any] = {}
        for source in reversed(self.sources):
            merged.update(source.info)
        merged["ranks"] = len(self.sources)
        merged["complete"] = all(source.info["complete"] for source in self.sources)
        return merged

    def load(self, stat: Stat) -> Loaded:
        """One statistic of the whole model, shards joined by the rule in `RULES`."""
        return self._of(stat.kind).load(stat)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact sums over the shards of a 64-bit column."""
        return self._of(stat.kind).integers(stat)

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """Only of steps on which every shard has one: a part would pass for the whole."""
        shards = self._of(family.kind).of_subject(name)
        parts: dict[int, list[Histogram]] = {}
        for ranks in shards:
            by_step: dict[int, Histogram] = {}
            for position in reversed(ranks):
                at, current = self.places[position]
                outdated = set(self.steps[at[~current]].tolist())
                histograms = self.sources[position].histograms(family, name)
                by_step.update({s: h for s, h in histograms.items() if s not in outdated})
            for step, histogram in by_step.items():
                parts.setdefault(step, []).append(histogram)
        complete = sorted(step for step in parts if len(parts[step]) == len(shards))
        return {step: _merged_histogram(parts[step]) for step in complete}

    def downsample(self, stat: Stat, first: int, last: int, points: int) -> Downsampled | None:
        """None: the extremes that shards had in a range do not give those of the whole."""
        return None

    def _of(self, kind: Kind) -> "Shards":
        if kind not in self._shards:
            names = [subject.name for subject in self.subjects if subject.kind is kind]
            self._shards[kind] = Shards(kind, names, self.steps, self.sources, self.places)
        return self._shards[kind]


def _unsharded(subject: Subject) -> Subject:
    """The subject as one machine would have it."""
    if subject.placement is None:
        return subject
    shape = subject.placement.global_shape
    return replace(subject, shape=shape, count=prod(shape), placement=None)


def _merged_histogram(parts: Sequence[Histogram]) -> Histogram:
    """The histogram of all parts together."""
    first = min(part.first_exponent for part in parts)
    end = max(part.first_exponent + len(part.negative) for part in parts)
    negative, positive = np.zeros(end - first, np.uint64), np.zeros(end - first, np.uint64)
    for part in parts:
        at = slice(part.first_exponent - first, part.first_exponent - first + len(part.negative))
        negative[at] += part.negative
        positive[at] += part.positive
    return Histogram(
        first,
        negative,
        positive,
        sum(part.zeros for part in parts),
        sum(part.nan for part in parts),
        sum(part.positive_inf for part in parts),
        sum(part.negative_inf for part in parts),
    )


class Shards:
    """The subjects of one kind over all ranks, and which rank holds which shard of them.

    A parameter without a placement is the same on every rank: the lowest rank that has it counts. A
    sharded one has as many shards as there are distinct placements. A layer sees another part of
    the batch on each rank: each is a shard.
    """

    def __init__(
        self,
        kind: Kind,
        names: Sequence[str],
        steps: NDArray[np.int64],
        ranks: Sequence[RankSource],
        places: Sequence[RankPlaces],
    ) -> None:
        self._kind, self._names, self._steps = kind, names, steps
        self._ranks, self._places = ranks, places
        self._shards = [self.of_subject(name) for name in names]
        self._most = max((len(shards) for shards in self._shards), default=1) or 1
        self._undivided = np.array([len(shards) <= 1 for shards in self._shards], bool)
        self._loaded: dict[tuple[int, Stat], Loaded] = {}

    def of_subject(self, name: str) -> list[list[int]]:
        """The shards of a subject: for each, the ranks (by position) that hold it, lowest first."""
        shards: dict[Hashable, list[int]] = {}
        for position in range(len(self._ranks)):
            subject = self._subject(position, name)
            if subject is not None:
                shards.setdefault(_shard(subject, position), []).append(position)
        return list(shards.values())

    def load(self, stat: Stat) -> Loaded:
        """The statistic of the whole; the ranks' own tables are let go again afterwards."""
        try:
            return Loaded(self._merged(stat), self._merged_states(stat))
        finally:
            self._loaded.clear()

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact sums; of hashes modulo 2^64, as they are meant."""
        total = np.zeros((len(self._steps), len(self._names)), np.uint64)
        try:
            chosen = self._chosen(self._states(stat))
        finally:
            self._loaded.clear()
        for position, rank in enumerate(self._ranks):
            if stat in rank.recorded and (chosen == position).any():
                values = self._spread(position, rank.integers(stat), np.uint64, 0)
                for shard in range(self._most):
                    cells = chosen[shard] == position
                    total[cells] += values[cells]
        return total

    def _subject(self, position: int, name: str) -> Subject | None:
        return self._ranks[position].by_name.get((self._kind, name))

    def _load(self, position: int, stat: Stat) -> Loaded:
        key = position, stat
        if key not in self._loaded:
            self._loaded[key] = self._ranks[position].load(stat)
        return self._loaded[key]

    def _merged(self, stat: Stat) -> NDArray[np.float64]:
        # Cosines of shards do not give that of the whole, but sketches add up: take it of those.
        if stat is Stat.GRAD_COSINE and self._most > 1:
            sketches = _sum(self._parts, Stat.GRAD_SKETCH)
            alone = self._parts(Stat.GRAD_COSINE)[0]
            return np.where(self._undivided[None, :], alone, _cosines(sketches))
        parts = self._parts(stat)
        first: NDArray[np.float64] = parts[0]
        if self._undivided.all():
            return first
        if parts.ndim > 3:  # sketches
            return np.where(self._undivided[None, :, None], first, _sum(lambda _: parts, stat))
        cache = {stat: parts}

        def get(other: Stat) -> NDArray[np.float64]:
            if other not in cache:
                # Updates and optimizer statistics count no elements: sizes of shards do instead.
                sized = other is Stat.WEIGHT_COUNT and stat.family is not Family.WEIGHT
                cache[other] = self._sizes() if sized else self._parts(other)
            return cache[other]

        merged = RULES[stat](get, stat)
        if stat in SHARED_ROWS:
            # A row cut across ranks is zero only if it is on each of them: at most the fewest.
            cut = np.array([self._cuts_rows(name) for name in self._names])
            merged = np.where(cut[None, :], np.fmin.reduce(parts, axis=0), merged)
        return np.where(self._undivided[None, :], first, merged)

    def _parts(self, stat: Stat) -> NDArray[np.float64]:
        """[shard, step, subject(, width)]: what the chosen rank of each shard has."""
        shape = (self._most, len(self._steps), len(self._names))
        out = np.full(shape if stat.width == 1 else (*shape, stat.width), np.nan)
        chosen = self._chosen(self._states(stat))
        for position, rank in enumerate(self._ranks):
            if stat not in rank.recorded:
                continue
            values = self._spread(position, self._load(position, stat).values, np.float64, np.nan)
            for shard in range(self._most):
                cells = chosen[shard] == position
                out[shard][cells] = values[cells]
        return out

    def _sizes(self) -> NDArray[np.float64]:
        """Elements of each shard, for statistics that count nothing themselves."""
        sizes = np.full((self._most, 1, len(self._names)), np.nan)
        for column, (name, shards) in enumerate(zip(self._names, self._shards, strict=True)):
            for shard, ranks in enumerate(shards):
                subject = self._subject(ranks[0], name)
                if subject is not None:
                    placed = subject.placement
                    sizes[shard, 0, column] = prod(placed.shape) if placed else subject.count
        return np.broadcast_to(sizes, (self._most, len(self._steps), len(self._names)))

    def _states(self, stat: Stat) -> NDArray[np.uint8]:
        """[rank, step, subject]."""
        shape = (len(self._ranks), len(self._steps), len(self._names))
        out = np.full(shape, State.NOT_SAMPLED, np.uint8)
        for position, rank in enumerate(self._ranks):
            if stat in rank.recorded:
                states = self._load(position, stat).states
                out[position] = self._spread(position, states, np.uint8, State.NOT_SAMPLED)
        return out

    def _chosen(self, states: NDArray[np.uint8]) -> NDArray[np.int64]:
        """[shard, step, subject]: the rank whose value counts; −1 where none has one."""
        available = ~np.isin(states, _UNKNOWN)
        chosen = np.full((self._most, *states.shape[1:]), -1)
        for column, shards in enumerate(self._shards):
            for shard, ranks in enumerate(shards):
                for position in reversed(ranks):  # the lowest rank comes last and wins
                    chosen[shard, available[position, :, column], column] = position
        return chosen

    def _merged_states(self, stat: Stat) -> NDArray[np.uint8]:
        """The worst state of the shards that have a value; *partial* where one of them has none."""
        states = self._states(stat)
        chosen = self._chosen(states)
        there = chosen >= 0
        picked = np.take_along_axis(states, np.maximum(chosen, 0), axis=0)
        valued = there & HAS_VALUE[picked]
        first = np.full(states.shape[1:], State.NOT_SAMPLED, np.uint8)
        for shard in reversed(range(self._most)):
            first = np.where(there[shard], picked[shard], first)
        worst = np.where(valued, picked, 0).max(axis=0)
        merged = np.where(valued.any(axis=0), worst, first)
        shards = np.array([max(len(shards), 1) for shards in self._shards])
        lacking = (valued.sum(axis=0) < shards[None, :]) | ~self._covered()[None, :]
        merged = np.where(valued.any(axis=0) & lacking, State.PARTIAL, merged)
        damaged = (states == State.DAMAGED).any(axis=0) & ~there.any(axis=0)
        return np.where(damaged, State.DAMAGED, merged).astype(np.uint8)

    def _covered(self) -> NDArray[np.bool_]:
        """Whether all shards of a subject together are the whole tensor."""
        out = np.ones(len(self._names), bool)
        for column, (name, shards) in enumerate(zip(self._names, self._shards, strict=True)):
            subjects = [self._subject(ranks[0], name) for ranks in shards]
            placed = [subject.placement for subject in subjects if subject and subject.placement]
            if placed and len(placed) == len(subjects):
                held = sum(prod(placement.shape) for placement in placed)
                out[column] = held == prod(placed[0].global_shape)
        return out

    def _cuts_rows(self, name: str) -> bool:
        for position in range(len(self._ranks)):
            subject = self._subject(position, name)
            if subject and subject.placement:
                return subject.placement.shape[1:] != subject.placement.global_shape[1:]
        return False

    def _spread(
        self, position: int, values: NDArray[Any], dtype: type, fill: float
    ) -> NDArray[Any]:
        """One rank's table laid out over all steps and subjects; other attempts are left out."""
        rank = self._ranks[position]
        at, current = self._places[position]
        out = np.full((len(self._steps), len(self._names), *values.shape[2:]), fill, dtype)
        columns = np.array([rank.columns.get((self._kind, name), -1) for name in self._names], int)
        present = np.flatnonzero(columns >= 0)
        rows = np.flatnonzero(current)
        out[np.ix_(at[current], present)] = values[np.ix_(rows, columns[present])]
        return out


def _shard(subject: Subject, position: int) -> Hashable:
    """Equal for ranks that hold copies of the same thing."""
    if subject.kind is Kind.LAYER:
        return position
    placement = subject.placement
    return None if placement is None else (placement.offset, placement.shape)


# -- the rule of each statistic ------------------------------------------------------------------

Parts = NDArray[np.float64]
Merged = NDArray[np.float64]
Get = Callable[[Stat], Parts]
"""Gives the parts of another statistic of the same family."""
Rule = Callable[[Get, Stat], Merged]


def _sum(get: Get, stat: Stat) -> Merged:
    parts = get(stat)
    return np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))


def _low(get: Get, stat: Stat) -> Merged:
    return np.asarray(np.fmin.reduce(get(stat), axis=0))


def _high(get: Get, stat: Stat) -> Merged:
    return np.asarray(np.fmax.reduce(get(stat), axis=0))


def _norm(get: Get, stat: Stat) -> Merged:
    """Root of the sum of squares, scaled so that squares stay in range."""
    parts = get(stat)
    scale = np.fmax.reduce(np.abs(parts), axis=0)
    safe = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    total = safe * np.sqrt(np.nansum((parts / safe) ** 2, axis=0))
    return np.where(np.isnan(parts).all(axis=0), np.nan, total)


def _weighted(get: Get, stat: Stat, *, by: Stat, power: int = 1) -> Merged:
    return _weighted_mean(get(stat), get(by), power)


def _weighted_mean(values: Parts, weights: Parts, power: int = 1) -> Merged:
    there = np.isfinite(values) & np.isfinite(weights)
    weights = np.where(there, weights, 0.0)
    joined = (np.where(there, values, 0.0) ** power * weights).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Merged = joined / weights.sum(axis=0)
    return mean if power == 1 else mean ** (1.0 / power)


def _ratio(get: Get, stat: Stat) -> Merged:
    """Norm of the whole update ÷ norm of the whole weight before it."""
    # The norm before the update is not stored, but it is the update's divided by the ratio.
    updates, ratios = get(Stat.UPDATE_NORM), get(stat)
    with np.errstate(invalid="ignore", divide="ignore"):
        before = np.where(ratios > 0, updates / ratios, np.where(np.isnan(ratios), np.nan, 0.0))
        return np.where(
            (ratios == 0).all(axis=0),
            0.0,
            _norm(get, Stat.UPDATE_NORM) / _norm(lambda _: before, stat),
        )


def _moment(get: Get, stat: Stat, *, family: Family) -> Merged:
    """Mean, standard deviation, skewness or excess kurtosis of the parts together."""
    counts = _finite(get, family)
    means, stds = get(Stat(f"{family}_mean")), get(Stat(f"{family}_std"))
    # Fourth powers leave the range of float64; a common power of two (exact) keeps them inside.
    scale = np.fmax.reduce(np.abs(get(Stat(f"{family}_abs_max"))), axis=0)
    exponent = np.where(np.isfinite(scale), np.frexp(np.nan_to_num(scale))[1], 0)
    sums = MomentSums(np.zeros(means.shape[1:]))
    for part, count in enumerate(counts):
        there = count > 0
        std = np.ldexp(stds[part], -exponent)
        m2 = count * std * std
        m3 = m4 = np.zeros(count.shape)
        if family is not Family.ACT:  # activations keep two moments only
            skewness = get(Stat(f"{family}_skewness"))[part]
            kurtosis = get(Stat(f"{family}_kurtosis"))[part]
            m3 = np.nan_to_num(skewness) * m2 * std
            m4 = np.where(np.isnan(kurtosis), 0.0, (kurtosis + 3.0) * m2 * std * std)
        mean = np.where(there, np.ldexp(means[part], -exponent), sums.mean)
        sums.mean = np.where(sums.n == 0, mean, sums.mean)  # the first part is taken as it is
        sums.join(
            np.where(there, count, 0.0), mean, *(np.where(there, m, 0.0) for m in (m2, m3, m4))
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(sums.n > 0, sums.m2 / sums.n, np.nan)
        match stat.removeprefix(f"{family}_"):
            case "mean":
                return np.where(sums.n > 0, np.ldexp(sums.mean, exponent), np.nan)
            case "std":
                return np.ldexp(np.sqrt(variance), exponent)
            case "skewness":
                shape = sums.m3 / sums.n / (variance * np.sqrt(variance))
            case _:
                shape = sums.m4 / sums.n / (variance * variance) - 3.0
    return np.where(variance > 0, shape, np.nan)


def _finite(get: Get, family: Family) -> Parts:
    """How many finite elements each part has."""
    bad = (
        [Stat.ACT_NONFINITE]
        if family is Family.ACT
        else [Stat(f"{family}_nan"), Stat(f"{family}_inf")]
    )
    return np.subtract(get(Stat(f"{family}_count")), sum(np.nan_to_num(get(s)) for s in bad))


def _abs_mean(get: Get, stat: Stat, *, family: Family) -> Merged:
    return _weighted_mean(get(stat), _finite(get, family))


def _first(get: Get, stat: Stat) -> Merged:
    parts = get(stat)
    first: Merged = parts[0]
    for part in parts[1:]:
        first = np.where(np.isnan(first), part, first)
    return first


def _cosines(sketches: NDArray[np.float64]) -> Merged:
    """Cosine of each sketch [step, subject, width] with the last one measured before it."""
    out = np.full(sketches.shape[:2], np.nan)
    before = np.full(sketches.shape[1:], np.nan)
    for step, now in enumerate(sketches):
        with np.errstate(invalid="ignore", divide="ignore"):
            product = (now * before).sum(axis=1)
            out[step] = product / np.sqrt((now**2).sum(axis=1) * (before**2).sum(axis=1))
        measured = ~np.isnan(now).any(axis=1)
        before[measured] = now[measured]
    return out


def _tensor_rules(family: Family) -> dict[Stat, Rule]:
    moment = partial(_moment, family=family)
    rules: dict[str, Rule] = {
        **dict.fromkeys(("count", "nan", "inf", "zero_rows"), _sum),
        **dict.fromkeys(("mean", "std", "skewness", "kurtosis"), moment),
        "norm": _norm,
        "abs_mean": partial(_abs_mean, family=family),
        "abs_max": _high,
        "min": _low,
        "max": _high,
        "zero_fraction": partial(_weighted, by=Stat(f"{family}_count")),
    }
    return {Stat(f"{family}_{name}"): rule for name, rule in rules.items()}


_BY_ACT = partial(_weighted, by=Stat.ACT_COUNT)
_BY_SIZE = partial(_weighted, by=Stat.WEIGHT_COUNT)
"""Where a family counts nothing itself, parts weigh as many elements as they have."""

RULES: Mapping[Stat, Rule] = {
    **_tensor_rules(Family.GRAD),
    Stat.GRAD_DEAD_ROWS: _sum,
    Stat.GRAD_UNTOUCHED_ROWS: _sum,
    Stat.GRAD_SKETCH: _sum,
    **_tensor_rules(Family.WEIGHT),
    Stat.WEIGHT_ROW_SPREAD: _high,
    Stat.WEIGHT_HASH: _sum,
    Stat.UPDATE_NORM: _norm,
    Stat.UPDATE_RATIO: _ratio,
    Stat.UPDATE_LOST_FRACTION: _BY_SIZE,
    Stat.OPTIM_RATIO_RMS: partial(_weighted, by=Stat.WEIGHT_COUNT, power=2),
    Stat.OPTIM_EPS_FRACTION: _BY_SIZE,
    Stat.ACT_COUNT: _sum,
    Stat.ACT_NONFINITE: _sum,
    Stat.ACT_MEAN: partial(_moment, family=Family.ACT),
    Stat.ACT_STD: partial(_moment, family=Family.ACT),
    Stat.ACT_ABS_MAX: _high,
    Stat.ACT_ZERO_FRACTION: _BY_ACT,
    Stat.ACT_GATE_ZERO_FRACTION: _BY_ACT,
    Stat.ACT_FLAT_FRACTION: _BY_ACT,
    Stat.ACT_ENTROPY: _BY_ACT,
    Stat.PROBE_NONFINITE: _sum,
    Stat.PROBE_INPUT_NONFINITE: _sum,
    Stat.PROBE_TRAINING: _low,
    Stat.LR: _first,
}
SHARED_ROWS = frozenset(
    {Stat.GRAD_ZERO_ROWS, Stat.GRAD_DEAD_ROWS, Stat.GRAD_UNTOUCHED_ROWS, Stat.WEIGHT_ZERO_ROWS}
)
"""Counts of rows: they add up only where every part holds whole rows."""
