"""Several ranks as one run: copies count once, shards of a tensor and of a batch are merged.

`run.join_rules` has the rule by which each statistic of the whole comes from those of its shards.
They go by in the order of the ranks, so that the same folders always give the same bits, and are
let go again, so that a thousand ranks need little more memory than one.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gradwatch.run.join_rules import RULES, Table
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State
from gradwatch.store.rank import RankSource, States


class MergedSource(RankSource):
    """Implements `Source` over the ranks of one run. Steps, logged numbers and events are those of
    all folders; of what several ranks have, the lowest rank's counts."""

    def __init__(self, sources: Sequence[RankSource]) -> None:
        self.sources = sources
        # The last one counts most: that of the lowest rank.
        self.folders = [folder for source in reversed(sources) for folder in source.folders]
        self.recorded = frozenset().union(*(source.recorded for source in sources))
        self.ranks = {source.rank: Run(source) for source in sources}
        """Each rank's own run: its own loss, its own batch."""
        self.thinned = None  # the extremes of shards are not those of the whole

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        """Every subject once, with the shape of the whole tensor rather than of a shard."""
        return tuple(subject.unsharded() for subject in super().subjects)

    @property
    def info(self) -> dict[str, Any]:
        """The lowest rank's notes, completed by the others'; complete only if every rank is."""
        found = [source.info for source in self.sources]
        merged = {name: value for info in reversed(found) for name, value in info.items()}
        complete = all(info["complete"] for info in found)
        return merged | {"ranks": len(found), "complete": complete}

    def load(self, stat: Stat) -> Loaded:
        """One statistic of the whole model, shards joined by the rule in `RULES`."""
        shards = self.shards[stat.kind]
        alone, valued = np.full(shards.shape, np.nan), np.zeros(shards.shape, np.int64)
        worst = np.zeros(shards.shape, np.uint8)
        first = np.full(shards.shape, State.NOT_SAMPLED, np.uint8)
        for values, states in shards.tables(stat):
            has = HAS_VALUE[states]
            valued += has
            np.copyto(alone, values, where=has)
            np.maximum(worst, states, out=worst, where=has)
            np.copyto(first, states, where=first == State.NOT_SAMPLED)
        # The worst state of the shards that have a value; *partial* where one of them has none.
        whole = (valued == shards.counts) & (shards.covered > 1 - 1e-9)
        states = np.where(valued > 0, np.where(whole, worst, State.PARTIAL), first)
        divided = shards.counts > 1
        merged = RULES[stat](shards, stat) if divided.any() else np.nan
        return Loaded(np.where(divided, merged, alone), states.astype(np.uint8)).compact()

    def integers(self, stat: Stat) -> Any:
        """Exact sums over the shards of a 64-bit column; of hashes modulo 2^64, as meant."""
        shards = self.shards[stat.kind]
        total = np.zeros(shards.shape, np.uint64)
        for rank, source in enumerate(self.sources):
            total += shards.spread(rank, source.integers(stat), 0)
        return total

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """Only of steps on which every shard has one: a part would pass for the whole."""
        at = self.columns[family.kind].get(name, -1)
        held = self.shards[family.kind].columns[:, at] if at >= 0 else np.empty(0)
        ranks = np.flatnonzero(held >= 0).tolist()
        parts: dict[int, list[Histogram]] = {}
        for rank in ranks:
            for step, histogram in self.sources[rank].histograms(family, name).items():
                parts.setdefault(step, []).append(histogram)
        complete = sorted(step for step in parts if len(parts[step]) == len(ranks))
        return {step: Histogram.merged(parts[step]) for step in complete}

    @cached_property
    def shards(self) -> "dict[Kind, Shards]":
        """Which rank holds what of the subjects of each kind."""
        return {kind: Shards(self, kind) for kind in Kind}


class Shards:
    """The subjects of one kind over all ranks, and which rank holds which shard of them.

    A parameter without a placement is the same on every rank: the lowest rank that has it counts. A
    sharded one has as many shards as there are distinct placements; of copies the lowest rank's
    counts. A layer sees another part of the batch on each rank: each is a shard.
    """

    def __init__(self, run: MergedSource, kind: Kind) -> None:
        self._run, names = run, run.columns[kind]
        self.shape = len(run.steps), len(names)
        # [rank, subject]: the column in the rank's own tables (−1 where it has none that counts),
        # and the elements of the shard.
        self.columns = np.full((len(run.sources), len(names)), -1)
        self._sizes = np.full(self.columns.shape, np.nan)
        self.covered, self.cut_rows = np.zeros(len(names)), np.zeros(len(names), bool)
        """Which share of the whole its shards are; whether its rows lie on several ranks."""
        seen: set[Hashable] = set()
        for rank, source in enumerate(run.sources):
            own = [subject for subject in source.subjects if subject.kind is kind]
            for column, subject in enumerate(own):
                place, at = subject.placement, names[subject.name]
                shard: Hashable = place and (place.offset, place.shape)
                key = at, rank if kind is Kind.LAYER else shard
                if key in seen:
                    continue
                seen.add(key)
                self.columns[rank, at] = column
                own_shape, whole = (place.shape, place.global_shape) if place else ((), ())
                self._sizes[rank, at] = prod(own_shape) if place else subject.count
                self.covered[at] += prod(own_shape) / max(prod(whole), 1)
                self.cut_rows[at] = own_shape[1:] != whole[1:]
        self.counts = (self.columns >= 0).sum(axis=0)
        """How many shards each subject has."""

    def sizes(self) -> Iterator[Table]:
        """The elements of each part, for statistics that count nothing themselves."""
        return iter(self._sizes)

    def of(self, stat: Stat) -> Iterator[Table]:
        """Shard after shard the values of a statistic."""
        return (values for values, _ in self.tables(stat))

    def tables(self, stat: Stat) -> Iterator[tuple[Table, States]]:
        """Values and states of rank after rank, laid out over all steps and subjects."""
        for rank, source in enumerate(self._run.sources):
            run = Run(source)
            states = self.spread(rank, run.state(stat), State.NOT_SAMPLED)
            yield self.spread(rank, run.series[stat], np.nan), states

    def spread(self, rank: int, table: Any, fill: float) -> Any:
        """What counts of one rank's table, laid out over all steps and subjects."""
        out = np.full(self.shape, fill, table.dtype)
        held = np.flatnonzero(self.columns[rank] >= 0)
        at = np.searchsorted(self._run.steps, self._run.sources[rank].steps)
        out[np.ix_(at, held)] = table[:, self.columns[rank, held]]
        return out
