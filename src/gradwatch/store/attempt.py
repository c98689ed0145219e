"""What one writer left, and stretches of steps that are read of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
        missing = index.missing(blocks)
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


@dataclass(frozen=True)
class Stretch:
    """Some steps, one after the other, and which attempt (by position) counts on each."""

    steps: NDArray[np.int64]
    owners: NDArray[np.int64]

    def meets(self, block: Block) -> bool:
        """Whether the block has a step between the first and the last; they need no order."""
        if not len(self.steps):
            return False
        steps = block.steps
        return bool(((steps >= self.steps[0]) & (steps <= self.steps[-1])).any())
