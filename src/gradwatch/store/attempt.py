"""What one writer left, and stretches of steps that are read of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat
from gradwatch.store.block import Block, Damage, distinct
from gradwatch.store.column_file import ColumnBlock
from gradwatch.store.folder_index import FolderIndex, Side
from gradwatch.store.level_block import LevelBlock

LOOKS = 50
"""How often to look again where a growing run changes under the reader; mostly once is enough."""


@dataclass(frozen=True)
class Attempt:
    """What one writer left, frozen at the moment of looking."""

    number: int
    side: Side
    blocks: Sequence[Block]
    missing: Sequence[Damage]
    index: FolderIndex
    levels: Sequence[ColumnBlock]

    @classmethod
    def of(cls, index: FolderIndex) -> "Attempt":
        blocks = index.blocks()
        missing = [] if index.coarse else index.missing(blocks)
        for _ in range(LOOKS):
            if not missing or index.side.closed:
                break
            # the writer may have sealed a journal while we looked: then nothing is missing now
            before = index.mark
            index.refresh()
            if index.mark == before:
                break
            blocks = index.blocks()
            missing = index.missing(blocks)
        side = index.side
        frozen = Side(
            dict(side.subjects),
            list(side.scalars),
            list(side.events),
            list(side.notes),
            {key: dict(found) for key, found in side.histograms.items()},
            side.graph,
            side.closed,
        )
        return cls(index.folder.attempt, frozen, blocks, missing, index, index.levels())

    @property
    def damage(self) -> list[Damage]:
        """What cannot be read; reading columns may find more."""
        return [*self.index.damage(), *self.missing]

    @cached_property
    def spans(self) -> "Spans[Block]":
        return Spans(self.blocks)

    @cached_property
    def level_spans(self) -> "Spans[ColumnBlock]":
        return Spans(self.levels)

    @cached_property
    def stats(self) -> frozenset[Stat]:
        """What was recorded. A writer has one list of columns per family, so one whole block of a
        level tells for all of it; walking over the columns of thousands would take seconds."""
        found: set[Stat] = set()
        told: set[tuple[Family, int]] = set()
        for block in self.blocks:
            if isinstance(block, LevelBlock):
                key = block.family, block.base.level
                if key in told:
                    continue
                if block.base.complete:
                    told.add(key)
            found |= block.stats
        return frozenset(found)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step this attempt has anything for."""
        parts = [block.steps for block in self.blocks]
        parts += [rows["step"] for _, rows in self.side.scalars]
        return distinct(np.concatenate([*parts, np.empty(0, np.int64)]))


AnyBlock = TypeVar("AnyBlock", bound=Block)


class Spans(Generic[AnyBlock]):
    """Blocks by family with the steps they reach over: of thousands a window needs a few."""

    def __init__(self, blocks: Sequence[AnyBlock]) -> None:
        self._blocks: dict[Family, list[AnyBlock]] = {}
        for block in blocks:
            self._blocks.setdefault(block.family, []).append(block)
        self._edges = {
            family: (
                np.array([block.steps.min() for block in own], np.int64),
                np.array([block.steps.max() for block in own], np.int64),
            )
            for family, own in self._blocks.items()
        }

    def __contains__(self, family: Family) -> bool:
        return family in self._blocks

    def meeting(self, family: Family, first: int, last: int) -> list[AnyBlock]:
        """In their order, those that have steps on both sides of, or within, the stretch."""
        if family not in self._blocks:
            return []
        lowest, highest = self._edges[family]
        chosen = np.flatnonzero((lowest <= last) & (highest >= first))
        return [self._blocks[family][number] for number in chosen.tolist()]


@dataclass(frozen=True)
class Stretch:
    """Some steps, one after the other, and which attempt (by position) counts on each."""

    steps: NDArray[np.int64]
    owners: NDArray[np.int64]

    def blocks(self, attempt: Attempt, family: Family) -> Iterator[Block]:
        """What an attempt has of it; of levels only the buckets that reach into it."""
        if not len(self.steps):
            return
        first, last = int(self.steps[0]), int(self.steps[-1])
        for block in attempt.spans.meeting(family, first, last):
            near = block.near(first, last) if isinstance(block, LevelBlock) else block
            if near is not None:
                yield near
