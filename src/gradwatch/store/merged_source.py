"""Several ranks as one run: copies count once, pieces of a tensor and of a batch are joined."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.event import Event
from gradwatch.run.histogram import Histogram
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Subject
from gradwatch.run.window import Bands
from gradwatch.stats import Family, Kind, Stat, entry
from gradwatch.store.block import distinct
from gradwatch.store.pieces import Pieces, joined_histogram
from gradwatch.store.rank_source import RankSource


class MergedSource:
    """Implements `Source` over the ranks of one run. On every step the newest attempt counts."""

    def __init__(self, sources: Sequence[RankSource]) -> None:
        self.sources = list(sources)
        self._pieces: dict[Kind, Pieces] = {}

    @cached_property
    def ranks(self) -> dict[int, Run]:
        """Each rank's own run: its own loss, its own batch."""
        return {source.rank: Run(source) for source in self.sources}

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        return distinct(np.concatenate([source.steps for source in self.sources]))

    @cached_property
    def valid(self) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """For each rank: where its steps are in `steps`, and which are of the newest attempt."""
        newest = np.full(len(self.steps), -1)
        places = []
        for source in self.sources:
            at = np.searchsorted(self.steps, source.steps)
            numbers = np.array([a.number for a in source.attempts] or [0])[source.owners]
            newest[at] = np.maximum(newest[at], numbers)
            places.append((at, numbers))
        return [(at, numbers == newest[at]) for at, numbers in places]

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        known: dict[tuple[Kind, str], Subject] = {}
        for source in self.sources:
            for subject in source.subjects:
                known.setdefault((subject.kind, subject.name), _whole(subject))
        return tuple(known.values())

    @cached_property
    def recorded(self) -> frozenset[Stat]:
        return frozenset().union(*(source.recorded for source in self.sources))

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        """The value of the lowest rank that logged one; `ranks` has each rank's own."""
        table: dict[str, NDArray[np.float64]] = {}
        for source, (at, good) in zip(self.sources, self.valid, strict=True):
            for name, own in source.scalars.items():
                column = table.setdefault(name, np.full(len(self.steps), np.nan))
                use = good & np.isnan(column[at])
                column[at[use]] = own[use]
        for column in table.values():
            column.setflags(write=False)
        return table

    @property
    def events(self) -> tuple[Event, ...]:
        found = [event for source in self.sources for event in source.events]
        return tuple(sorted(found, key=lambda event: event.step))

    @property
    def graph(self) -> Graph | None:
        return next((s.graph for s in self.sources if s.graph is not None), None)

    @cached_property
    def info(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for source in reversed(self.sources):
            merged.update(source.info)
        merged["ranks"] = len(self.sources)
        merged["complete"] = all(source.info["complete"] for source in self.sources)
        return merged

    def load(self, stat: Stat) -> Loaded:
        return self._of(entry(stat).kind).load(stat)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        return self._of(entry(stat).kind).integers(stat)

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        pieces = self._of(family.kind).of_subject(name)
        found: dict[int, list[Histogram]] = {}
        for ranks in pieces:
            steps: dict[int, Histogram] = {}
            for number in reversed(ranks):
                at, good = self.valid[number]
                wrong = set(self.steps[at[~good]].tolist())
                own = self.sources[number].histograms(family, name)
                steps.update({step: h for step, h in own.items() if step not in wrong})
            for step, histogram in steps.items():
                found.setdefault(step, []).append(histogram)
        whole = {step: parts for step, parts in found.items() if len(parts) == len(pieces)}
        return {step: joined_histogram(parts) for step, parts in sorted(whole.items())}

    def bands(self, stat: Stat, first: int, last: int, points: int) -> Bands | None:
        return None

    def _of(self, kind: Kind) -> Pieces:
        if kind not in self._pieces:
            own = [subject for subject in self.subjects if subject.kind is kind]
            self._pieces[kind] = Pieces(self.steps, own, self.sources, self.valid)
        return self._pieces[kind]


def _whole(subject: Subject) -> Subject:
    """The subject as one machine would have it."""
    if subject.placement is None:
        return subject
    shape = subject.placement.global_shape
    return replace(subject, shape=shape, count=prod(shape), placement=None)
