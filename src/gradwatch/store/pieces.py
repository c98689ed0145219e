"""Which rank holds which piece of a subject, and the pieces' statistics side by side."""

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.histogram import Histogram
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Subject
from gradwatch.stats import HAS_VALUE, Kind, Stat, State, entry
from gradwatch.store.pooling import SHARED_ROWS, cosines, pool

_UNKNOWN = (State.NOT_SAMPLED, State.DAMAGED)


class Rank(Protocol):
    """What is asked of one rank."""

    @property
    def by_name(self) -> dict[tuple[Kind, str], Subject]: ...
    @property
    def recorded(self) -> frozenset[Stat]: ...
    @property
    def columns(self) -> dict[tuple[Kind, str], int]: ...
    def load(self, stat: Stat) -> Loaded: ...
    def integers(self, stat: Stat) -> NDArray[np.uint64]: ...


class Pieces:
    """The subjects of one kind over all ranks.

    A parameter without a placement is the same on every rank: the lowest rank that has it counts. A
    sharded one has a slot per distinct piece. A layer sees another part of the batch on each rank.
    """

    def __init__(
        self,
        steps: NDArray[np.int64],
        subjects: Sequence[Subject],
        ranks: Sequence[Rank],
        valid: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]],
    ) -> None:
        self._steps, self._subjects = steps, list(subjects)
        self._ranks, self._valid = ranks, valid
        self._slots = [self.of_subject(subject.name, subject.kind) for subject in self._subjects]
        self._loaded: dict[tuple[int, Stat], Loaded] = {}
        self._depth = max((len(slots) for slots in self._slots), default=1) or 1

    def of_subject(self, name: str, kind: Kind | None = None) -> list[list[int]]:
        """The pieces of a subject: for each, the ranks (by position) that hold it, lowest first."""
        kinds = [kind] if kind else [subject.kind for subject in self._subjects[:1]]
        pieces: dict[Any, list[int]] = {}
        for position, rank in enumerate(self._ranks):
            for wanted in kinds:
                subject = _find(rank, wanted, name)
                if subject is not None:
                    pieces.setdefault(_piece(subject, position), []).append(position)
        return list(pieces.values())

    def load(self, stat: Stat) -> Loaded:
        """The statistic of the whole; what the ranks gave is forgotten again afterwards."""
        try:
            return Loaded(self._pooled(stat), self._joined_states(stat, self._states(stat)))
        finally:
            self._loaded.clear()

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact sums; of hashes modulo 2^64, as they are meant."""
        try:
            return self._summed(stat)
        finally:
            self._loaded.clear()

    def _rank(self, position: int, stat: Stat) -> Loaded:
        key = position, stat
        if key not in self._loaded:
            self._loaded[key] = self._ranks[position].load(stat)
        return self._loaded[key]

    def _summed(self, stat: Stat) -> NDArray[np.uint64]:
        total = np.zeros((len(self._steps), len(self._subjects)), np.uint64)
        chosen = self._chosen(stat)
        for slot in range(self._depth):
            for position, rank in enumerate(self._ranks):
                cells = chosen[slot] == position
                if cells.any() and stat in rank.recorded:
                    spread = self._spread(position, rank.integers(stat), np.uint64, 0)
                    total[cells] += spread[cells]
        return total

    def _pooled(self, stat: Stat) -> NDArray[np.float64]:
        if stat is Stat.GRAD_COSINE and self._depth > 1:
            return self._cosines()
        parts = self._parts(stat)
        alone = np.array([len(slots) <= 1 for slots in self._slots], bool)
        single: NDArray[np.float64] = parts[0]
        if alone.all():
            return single
        if parts.ndim > 3:
            whole = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
            return np.where(alone[None, :, None], single, whole)
        cache = {stat: parts}

        def get(other: Stat) -> NDArray[np.float64]:
            if other not in cache:
                sized = other is Stat.WEIGHT_COUNT and entry(stat).family.value != "weight"
                cache[other] = self._sizes() if sized else self._parts(other)
            return cache[other]

        whole = pool(stat, get)
        if stat in SHARED_ROWS:
            cut = np.array([self._cuts_rows(subject) for subject in self._subjects])
            whole = np.where(cut[None, :], np.fmin.reduce(parts, axis=0), whole)
        return np.where(alone[None, :], single, whole)

    def _cosines(self) -> NDArray[np.float64]:
        parts = self._parts(Stat.GRAD_SKETCH)
        sketches = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
        alone = np.array([len(slots) <= 1 for slots in self._slots], bool)
        return np.where(alone[None, :], self._parts(Stat.GRAD_COSINE)[0], cosines(sketches))

    def _parts(self, stat: Stat) -> NDArray[np.float64]:
        """[slot, step, subject(, width)]: what the chosen rank of each slot has."""
        item = entry(stat)
        shape = (self._depth, len(self._steps), len(self._subjects))
        out = np.full(shape if item.width == 1 else (*shape, item.width), np.nan)
        chosen = self._chosen(stat)
        for position, rank in enumerate(self._ranks):
            if stat not in rank.recorded:
                continue
            spread = self._spread(position, self._rank(position, stat).values, np.float64, np.nan)
            for slot in range(self._depth):
                cells = chosen[slot] == position
                out[slot][cells] = spread[cells]
        return out

    def _sizes(self) -> NDArray[np.float64]:
        """Elements of each piece, for statistics that count nothing themselves."""
        sizes = np.full((self._depth, 1, len(self._subjects)), np.nan)
        for column, (subject, slots) in enumerate(zip(self._subjects, self._slots, strict=True)):
            for slot, ranks in enumerate(slots):
                found = _find(self._ranks[ranks[0]], subject.kind, subject.name)
                sizes[slot, 0, column] = _elements(found) if found else np.nan
        return np.broadcast_to(sizes, (self._depth, len(self._steps), len(self._subjects)))

    def _states(self, stat: Stat) -> NDArray[np.uint8]:
        """[rank, step, subject]."""
        out = np.full(
            (len(self._ranks), len(self._steps), len(self._subjects)), State.NOT_SAMPLED, np.uint8
        )
        for position, rank in enumerate(self._ranks):
            if stat in rank.recorded:
                own = self._rank(position, stat).states
                out[position] = self._spread(position, own, np.uint8, State.NOT_SAMPLED)
        return out

    def _chosen(self, stat: Stat) -> NDArray[np.int64]:
        """[slot, step, subject]: position of the rank whose value counts; −1 where none has one."""
        states = self._states(stat)
        known = ~np.isin(states, _UNKNOWN)
        chosen = np.full((self._depth, *states.shape[1:]), -1)
        for column, slots in enumerate(self._slots):
            for slot, ranks in enumerate(slots):
                for position in reversed(ranks):
                    chosen[slot, known[position, :, column], column] = position
        return chosen

    def _joined_states(self, stat: Stat, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
        chosen = self._chosen(stat)
        there = chosen >= 0
        safe = np.maximum(chosen, 0)
        picked = np.take_along_axis(states, safe, axis=0) if len(states) else safe.astype(np.uint8)
        valued = there & HAS_VALUE[picked]
        slots = np.array([max(len(found), 1) for found in self._slots])
        first = np.full(states.shape[1:], State.NOT_SAMPLED, np.uint8)
        for slot in reversed(range(self._depth)):
            first = np.where(there[slot], picked[slot], first)
            first = np.where(valued[slot], picked[slot], first)
        damaged = (states == State.DAMAGED).any(axis=0) & ~there.any(axis=0)
        worst = np.where(valued, picked, 0).max(axis=0)
        joined = np.where(valued.any(axis=0), worst, first)
        missing = valued.any(axis=0) & (valued.sum(axis=0) < slots[None, :])
        missing |= valued.any(axis=0) & ~self._covered()[None, :]
        joined = np.where(missing, State.PARTIAL, joined)
        return np.where(damaged, State.DAMAGED, joined).astype(np.uint8)

    def _covered(self) -> NDArray[np.bool_]:
        """Whether all pieces of a subject together are the whole tensor."""
        out = np.ones(len(self._subjects), bool)
        for column, (subject, slots) in enumerate(zip(self._subjects, self._slots, strict=True)):
            found = [_find(self._ranks[ranks[0]], subject.kind, subject.name) for ranks in slots]
            placed = [piece.placement for piece in found if piece and piece.placement]
            if placed and len(placed) == len(found):
                held = sum(prod(placement.shape) for placement in placed)
                out[column] = held == prod(placed[0].global_shape)
        return out

    def _cuts_rows(self, subject: Subject) -> bool:
        for rank in self._ranks:
            found = _find(rank, subject.kind, subject.name)
            if found and found.placement:
                return found.placement.shape[1:] != found.placement.global_shape[1:]
        return False

    def _spread(self, position: int, own: NDArray[Any], dtype: type, fill: float) -> NDArray[Any]:
        """One rank's table laid out over all steps and subjects; other attempts are left out."""
        rank = self._ranks[position]
        at, good = self._valid[position]
        shape = (len(self._steps), len(self._subjects), *own.shape[2:])
        out = np.full(shape, fill, dtype)
        columns = np.array(
            [rank.columns.get((subject.kind, subject.name), -1) for subject in self._subjects], int
        )
        there = np.flatnonzero(columns >= 0)
        out[np.ix_(at[good], there)] = own[np.ix_(np.flatnonzero(good), columns[there])]
        return out


def joined_histogram(parts: Sequence[Histogram]) -> Histogram:
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


def _piece(subject: Subject, position: int) -> Any:
    """Equal for ranks that hold copies of the same thing."""
    if subject.kind is Kind.LAYER:
        return position
    placement = subject.placement
    return None if placement is None else (placement.offset, placement.shape)


def _elements(subject: Subject) -> int:
    return prod(subject.placement.shape) if subject.placement else subject.count


def _find(rank: Rank, kind: Kind, name: str) -> Subject | None:
    return rank.by_name.get((kind, name))
