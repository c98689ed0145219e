"""Several ranks as one run: copies count once, shards of a tensor and of a batch are merged.

`run.join_rules` has the rule by which each statistic of the whole comes from those of its shards.
They go by in the order of the ranks, so that the same folders always give the same bits, and are
let go again, so that a thousand ranks need little more memory than one.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.downsample import Downsampled
from gradwatch.run.join_rules import RULES, Table
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Event, Histogram, Placement, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State
from gradwatch.store.chunks import ahead, distinct
from gradwatch.store.rank import RankSource

_AT_ONCE = 4
"""Tables of the whole that are in memory together while the ranks' own are merged …"""
_INDICES = 4
"""… and those that say which rank has what."""

RankPlaces = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Where a rank's steps are among those of the run, and which are of the newest attempt."""


class MergedSource:
    """Implements `Source` over the ranks of one run. On every step the newest attempt that any
    rank has counts: ranks that resumed and ranks that did not are never mixed within a step."""

    def __init__(self, sources: Sequence[RankSource]) -> None:
        self.sources = list(sources)
        self._shards: dict[Kind, Shards] = {}
        self.budget = self.sources[0].budget

    @property
    def room(self) -> int:
        """Bytes of series that a `Run` may keep."""
        return self.budget.room

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
        return tuple(_unsharded(subject) for subject in self._described)

    @cached_property
    def _described(self) -> list[Subject]:
        """Every subject once, as the lowest rank that has it describes it."""
        subjects: dict[tuple[Kind, str], Subject] = {}
        before: list[tuple[str, ...]] = []
        read = ahead(lambda source: [source.names(kind) for kind in Kind], self.sources)
        for source, names in zip(self.sources, read, strict=True):
            if names != before:  # nearly all ranks name the same
                for subject in source.subjects:
                    subjects.setdefault((subject.kind, subject.name), subject)
            before = names
        return list(subjects.values())

    @cached_property
    def recorded(self) -> frozenset[Stat]:
        """What at least one rank recorded."""
        return frozenset().union(*(source.recorded for source in self.sources))

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        """The value of the lowest rank that logged one; `ranks` has each rank's own."""
        table: dict[str, NDArray[np.float64]] = {}
        for source, (at, current) in zip(self.sources, self.places, strict=True):
            names, steps = table.keys() | source.scalars.keys(), len(self.steps)
            claim = f"{len(names):,} scalars of {steps:,} steps"
            self.budget.keep("scalars", 8 * steps * len(names), claim)
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
        shards = self._of(family.kind).ranks_of(name)
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
            subjects = [subject for subject in self._described if subject.kind is kind]
            self.budget.table(len(self.sources), len(subjects), "ranks", _INDICES)
            self.budget.table(len(self.steps), len(subjects), "steps", _AT_ONCE)
            self._shards[kind] = Shards(kind, subjects, self.sources, self.places, len(self.steps))
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
    negative, positive = np.zeros((2, end - first), np.uint64)
    for part in parts:
        at = slice(part.first_exponent - first, part.first_exponent - first + len(part.negative))
        negative[at] += part.negative
        positive[at] += part.positive
    others = [(part.zeros, part.nan, part.positive_inf, part.negative_inf) for part in parts]
    return Histogram(first, negative, positive, *map(sum, zip(*others, strict=True)))


class Part(NamedTuple):
    """One shard of each subject that has so many; the other subjects are not sampled in it."""

    held: NDArray[np.bool_]
    """Of which subjects there is a shard."""
    values: NDArray[Any]
    states: NDArray[np.uint8]


class Shards:
    """The subjects of one kind over all ranks, and which rank holds which shard of them.

    A parameter without a placement is the same on every rank: the lowest rank that has it counts. A
    sharded one has as many shards as there are distinct placements. A layer sees another part of
    the batch on each rank: each is a shard. Ranks are counted by position, from 0.
    """

    def __init__(
        self,
        kind: Kind,
        subjects: Sequence[Subject],
        ranks: Sequence[RankSource],
        places: Sequence[RankPlaces],
        steps: int,
    ) -> None:
        self._kind, self._subjects, self._ranks, self._places = kind, subjects, ranks, places
        self.shape = steps, len(subjects)
        self._at = {subject.name: at for at, subject in enumerate(subjects)}
        # [rank, subject], −1 where a rank does not have a subject: its column in the rank's own
        # tables, the number of the shard, and the lowest rank that holds the same shard.
        self._columns = np.full((len(ranks), len(subjects)), -1)
        shards = self._columns.copy()
        numbers: dict[Hashable, int] = {}
        for rank, source in enumerate(ranks):
            at = [self._at[name] for name in source.names(kind)]
            keys = [_shard(kind, place, rank) for place in source.placements(kind)]
            self._columns[rank, at] = np.arange(len(at))
            shards[rank, at] = [numbers.setdefault(key, len(numbers)) for key in keys]
        self._holders = _lowest_holders(shards)
        self._copies: dict[int, list[int]] = {}  # by lowest holder, the ranks that have its shards
        for rank, holders in enumerate(self._holders):
            for holder in np.unique(holders[holders >= 0]).tolist():
                self._copies.setdefault(holder, []).append(rank)
        lowest = self._holders == np.arange(len(ranks))[:, None]
        self.counts = lowest.sum(axis=0)  # of the shards of each subject
        # Shards that are not placed are whole in themselves: then there is nothing to compare.
        sizes = np.array([prod(key[1]) if isinstance(key, tuple) else np.nan for key in numbers])
        held = np.where(lowest, sizes[shards], 0.0).sum(axis=0)
        self.covered = np.isnan(held) | (held == [_unsharded(s).count for s in subjects])
        placed = [subject.placement for subject in subjects]
        cut = [p is not None and p.shape[1:] != p.global_shape[1:] for p in placed]
        self.cut_rows = np.array(cut, bool)  # whether rows of a subject lie on several ranks

    def ranks_of(self, name: str) -> list[list[int]]:
        """The shards of a subject: for each, the ranks that hold it, lowest first."""
        if name not in self._at:
            return []
        holders = self._holders[:, self._at[name]]
        shards = np.unique(holders[holders >= 0])
        return [np.flatnonzero(holders == shard).tolist() for shard in shards]

    def load(self, stat: Stat) -> Loaded:
        """The statistic of the whole."""
        parts = PassingParts(self, stat)
        divided = self.counts > 1
        merged = RULES[stat](parts, stat) if divided.any() else parts.alone
        parts.finish()
        if stat.width > 1:
            divided = divided[:, None]
        return Loaded(np.where(divided, merged, parts.alone), parts.states).compact()

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact sums; of hashes modulo 2^64, as they are meant."""
        total = np.zeros(self.shape, np.uint64)
        for part in self.parts(stat, exact=True):
            total += part.values
        return total

    def parts(self, stat: Stat, *, exact: bool = False) -> Iterator[Part]:
        """Shard after shard of every subject."""
        return ahead(lambda holder: self._part(holder, stat, exact), list(self._copies))

    def _part(self, holder: int, stat: Stat, exact: bool) -> Part:
        """Where the lowest rank that holds a shard has nothing for a step, the next one counts."""
        shape = self.shape if stat.width == 1 else (*self.shape, stat.width)
        values = np.zeros(shape, np.uint64) if exact else np.full(shape, np.nan)
        states = np.full(self.shape, State.NOT_SAMPLED, np.uint8)
        held = self._holders[holder] == holder
        lacking = np.broadcast_to(held, self.shape)
        for rank in self._copies[holder]:
            source = self._ranks[rank]
            at, current = self._places[rank]
            rows = at[current & source.sampled(stat)]
            if not lacking[rows].any():
                continue
            loaded = source.load(stat).whole(len(source.steps))
            own = self._spread(rank, loaded.states, State.NOT_SAMPLED)
            told = lacking & (self._holders[rank] == holder) & (own != State.NOT_SAMPLED)
            np.copyto(states, own, where=told)
            table = source.integers(stat) if exact else loaded.values
            known = told & (own != State.DAMAGED)
            mask = known if stat.width == 1 else known[..., None]
            np.copyto(values, self._spread(rank, table, 0), where=mask)
            lacking = lacking & ~known
            if not lacking.any():
                break
        return Part(held, values, states)

    def _spread(self, rank: int, table: NDArray[Any], fill: int) -> NDArray[Any]:
        """One rank's table laid out over all steps and subjects; other attempts are left out."""
        at, current = self._places[rank]
        columns = self._columns[rank]
        same_rows = len(at) == self.shape[0] and current.all()
        if same_rows and np.array_equal(columns, np.arange(table.shape[1])):
            return table
        out = np.full((*self.shape, *table.shape[2:]), fill, table.dtype)
        rows, present = np.flatnonzero(current), np.flatnonzero(columns >= 0)
        out[np.ix_(at[rows], present)] = table[np.ix_(rows, columns[present])]
        return out

    def sizes(self) -> Iterator[Table]:
        """The elements of each part, for statistics that count nothing themselves."""
        for holder in self._copies:
            sizes = np.full(self.shape[1], np.nan)
            source = self._ranks[holder]
            for name, place in zip(
                source.names(self._kind), source.placements(self._kind), strict=True
            ):
                at = self._at[name]
                sizes[at] = prod(place.shape) if place else self._subjects[at].count
            yield sizes


def _shard(kind: Kind, place: Placement | None, rank: int) -> Hashable:
    """Equal for ranks that hold copies of the same thing."""
    if kind is Kind.LAYER:
        return rank
    return (place.offset, place.shape) if place and kind is Kind.PARAMETER else None


def _lowest_holders(shards: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rank, subject] → the lowest rank with the same shard of that subject; −1 where it is −1."""
    width = max(1, shards.shape[1])
    codes = shards * width + np.arange(shards.shape[1])
    _, first, same = np.unique(codes, return_index=True, return_inverse=True)
    return np.where(shards < 0, -1, (first // width)[same].reshape(shards.shape))


class PassingParts:
    """The shards of one statistic as they go by, and what they have in common afterwards."""

    def __init__(self, shards: Shards, stat: Stat) -> None:
        self._shards, self._stat, self._seen = shards, stat, False
        self.sizes, self.cut_rows = shards.sizes, shards.cut_rows
        self._valued = np.zeros(shards.shape, np.int64)
        self._worst = np.zeros(shards.shape, np.uint8)
        self._first = np.full(shards.shape, State.NOT_SAMPLED, np.uint8)
        width = () if stat.width == 1 else (stat.width,)
        self.alone = np.full((*shards.shape, *width), np.nan)
        """The values of subjects that are in one piece."""

    def of(self, stat: Stat) -> Iterator[Table]:
        """Shard after shard the values of a statistic of the same kind."""
        for part in self._shards.parts(stat):
            if stat is self._stat:
                self._count(part)
            yield part.values

    def finish(self) -> None:
        """Let all shards go by, if no rule has asked for them."""
        if not self._seen:
            deque(self.of(self._stat), maxlen=0)

    def _count(self, part: Part) -> None:
        self._seen = True
        alone = part.held & (self._shards.counts == 1)
        if alone.any():
            self.alone[:, alone] = part.values[:, alone]
        valued = HAS_VALUE[part.states]
        self._valued += valued
        np.maximum(self._worst, part.states, out=self._worst, where=valued)
        unknown = (self._first == State.NOT_SAMPLED) | (self._first == State.DAMAGED)
        np.copyto(self._first, part.states, where=unknown & (part.states != State.NOT_SAMPLED))

    @property
    def states(self) -> NDArray[np.uint8]:
        """The worst state of the shards that have a value; *partial* where one of them has none."""
        whole = (self._valued == self._shards.counts) & self._shards.covered
        valued = np.where(whole, self._worst, State.PARTIAL)
        return np.where(self._valued > 0, valued, self._first).astype(np.uint8)
