"""Everything there is to know of gradients on accelerators, sent off together.

A sketch (`kernel.sketch` says what it is) is made of whole groups of 32 neighbours. Which groups
are taken and with which signs never changes, so both are laid out once and kept on the device:
about 0.16 bytes per element of a tensor of more than 65,536 elements, 1.5 to 9 of a smaller one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import frexp, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import SKETCH_WIDTH
from gradwatch.kernel.plain import scramble
from gradwatch.record.clipping import TOLERANCE, GradTransform
from gradwatch.record.device.statistics import (
    LIMIT,
    SentGroup,
    ShapeGroup,
    bins,
    cleaned,
    histograms_of,
    moments_of,
    same_shape_groups,
    sent_records,
    supported,
    touched,
    wide,
)
from gradwatch.record.device.transfer import Load
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import FamilyRows, Parts
from gradwatch.record.tensors import local
from gradwatch.run import HistogramTable
from gradwatch.stats import Family, State
from gradwatch.stats.rows import WINDOW, blank, fill_sketches, moment_rows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_EVERY_GROUP_UP_TO, _BUNCH = 65_536, 8


@dataclass(frozen=True)
class SketchPlace:
    """Where a tensor lies in the whole it may be a shard of, and what scrambles its sketch."""

    seed: int
    offset: int
    whole: int
    count: int

    @property
    def lead(self) -> int:
        """From the first element to the first group that begins in the tensor or behind it."""
        return -self.offset % SKETCH_WIDTH

    @property
    def head(self) -> int:
        """Elements before the first whole group."""
        return min(self.lead, self.count)

    @property
    def groups(self) -> int:
        """Whole groups of 32 neighbours behind the first, cut one."""
        return (self.count - self.head) // SKETCH_WIDTH

    @property
    def root(self) -> float:
        """What makes up for the groups that are not taken."""
        return float(np.sqrt(_BUNCH if self.whole > _EVERY_GROUP_UP_TO else 1))


@dataclass(frozen=True)
class SketchLayout:
    """The groups of one tensor that are taken, by the turn of their lanes, padded to one length.

    `rows` [turn, place] are numbers of groups, `signs` [turn, place, lane] are 0 where padded.
    `edges` [element, bucket] are the signs of the elements outside whole groups.
    """

    rows: NDArray[np.int64]
    signs: NDArray[np.int8]
    edges: NDArray[np.float64]


def lay_out(place: SketchPlace) -> SketchLayout:
    """Choose groups and signs as the kernel does."""
    bunch = _BUNCH if place.whole > _EVERY_GROUP_UP_TO else 1
    span = bunch * SKETCH_WIDTH
    first, last = place.offset // span, (place.offset + place.count - 1) // span
    bunches = np.arange(first, last + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words = scramble(np.uint64(place.seed) + bunches * _GOLDEN)
    taken = bunches * np.uint64(bunch) + (words >> np.uint64(37)) % np.uint64(bunch)
    numbers = taken.astype(np.int64) - (place.offset + place.lead) // SKETCH_WIDTH
    turns = ((words >> np.uint64(32)) & np.uint64(31)).astype(np.int64)
    signs = 1 - 2 * _bits(words)
    inside = (numbers >= 0) & (numbers < place.groups)
    rows, padded = _by_turn(numbers[inside], turns[inside], signs[inside])
    edges = np.zeros((place.count - place.groups * SKETCH_WIDTH, SKETCH_WIDTH))
    for number, turn, sign in zip(numbers[~inside], turns[~inside], signs[~inside], strict=True):
        _lay_edge(edges, place, int(number), int(turn), sign)
    return SketchLayout(rows, padded, edges)


def _bits(words: NDArray[np.uint64]) -> NDArray[np.int8]:
    """[word, lane]: the low 32 bits."""
    low = (words & np.uint64(0xFFFFFFFF)).astype("<u4")
    bits = np.unpackbits(low.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return bits.astype(np.int8)


def _by_turn(
    numbers: NDArray[np.int64], turns: NDArray[np.int64], signs: NDArray[np.int8]
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    order = np.argsort(turns, kind="stable")
    counts = np.bincount(turns, minlength=SKETCH_WIDTH)
    longest = int(counts.max(initial=0))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = turns[order], np.arange(len(order)) - starts[turns[order]]
    rows = np.zeros((SKETCH_WIDTH, longest), np.int64)
    padded = np.zeros((SKETCH_WIDTH, longest, SKETCH_WIDTH), np.int8)
    rows[place], padded[place] = numbers[order], signs[order]
    return rows, padded


def _lay_edge(
    edges: NDArray[np.float64], place: SketchPlace, number: int, turn: int, sign: NDArray[np.int8]
) -> None:
    """A group that is taken but lies only partly in the tensor."""
    begin = place.lead + number * SKETCH_WIDTH  # in the tensor; may be before it
    for lane in range(SKETCH_WIDTH):
        element = begin + lane
        if 0 <= element < place.count:
            after = element - place.groups * SKETCH_WIDTH if element >= place.head else element
            edges[after, (lane + turn) % SKETCH_WIDTH] = sign[lane]


class Sketcher:
    """The layouts of the tensors of one group, on their device."""

    def __init__(self, places: list[SketchPlace], device: torch.device) -> None:
        layouts = [lay_out(place) for place in places]
        longest = max(layout.rows.shape[1] for layout in layouts)
        groups = places[0].groups
        rows = np.zeros((len(places), SKETCH_WIDTH, longest), np.int64)
        signs = np.zeros((*rows.shape, SKETCH_WIDTH), np.int8)
        for line, layout in enumerate(layouts):
            used = layout.rows.shape[1]
            rows[line, :, :used], signs[line, :, :used] = layout.rows, layout.signs
            rows[line] += line * groups
        self._rows = torch.from_numpy(rows).to(device)
        self._signs = torch.from_numpy(signs).to(device)
        self._edges = np.stack([layout.edges for layout in layouts])
        self._roots = np.array([place.root for place in places])
        self._head, self._groups = places[0].head, groups

    @property
    def nbytes(self) -> int:
        """Memory of the device that is kept."""
        return self._rows.nbytes + self._signs.nbytes

    def sums(self, group: ShapeGroup) -> tuple[Tensor, Tensor]:
        """[tensor, turn · lane]: signed sums of whole groups; and the elements outside them."""
        kind, lines = wide(group.matrix.device), len(group.indices)
        stop = self._head + self._groups * SKETCH_WIDTH
        table = group.matrix[:, self._head : stop].reshape(-1, SKETCH_WIDTH)
        width = self._rows.shape[2]
        total = torch.zeros(
            lines, SKETCH_WIDTH * SKETCH_WIDTH, dtype=kind, device=group.matrix.device
        )
        step = max(1, LIMIT // (lines * SKETCH_WIDTH * SKETCH_WIDTH))
        for start in range(0, width, step):
            rows, signs = (part[:, :, start : start + step] for part in (self._rows, self._signs))
            taken = cleaned(table.index_select(0, rows.reshape(-1)))
            signed = taken.view(signs.shape) * signs
            total += signed.sum(2, dtype=kind).view(lines, -1)
        outside = torch.cat([group.matrix[:, : self._head], group.matrix[:, stop:]], dim=1)
        return total, outside

    def finish(
        self, buckets: NDArray[np.float64], outside: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """The sketches, from turned sums and the elements outside whole groups."""
        values = np.where(np.isfinite(outside), outside, 0.0).reshape(len(self._roots), -1)
        edges = np.einsum("te,teb->tb", values, self._edges)
        with np.errstate(over="ignore"):
            return np.asarray((buckets + edges) * self._roots[:, None], np.float32)


def turned(sums: Tensor) -> Tensor:
    """[tensor, bucket], from sums by turn and lane."""
    lanes = sums.index_select(1, _turning(sums.device))
    return lanes.view(-1, SKETCH_WIDTH, SKETCH_WIDTH).sum(1)


@lru_cache(maxsize=16)
def _turning(device: torch.device) -> Tensor:
    turn, bucket = np.divmod(np.arange(SKETCH_WIDTH**2), SKETCH_WIDTH)
    lane = (bucket - turn) % SKETCH_WIDTH
    return torch.from_numpy(turn * SKETCH_WIDTH + lane).to(device)


_KEPT = 256
"""Layouts of sketches of one optimizer; there are more only where gradients come and go."""
_CLOSE = 1e-3


class DeviceRowMemory:
    """The memory of rows on devices: for every row, when its gradient was last other than zero.

    Four bytes per row. The rows of all tensors of a device lie one after another, so that a step
    costs a few operations and not a few per tensor.
    """

    def __init__(self, rows: Mapping[int, tuple[torch.device, int]]) -> None:
        self.rows = dict(rows)
        """Of each tensor that has rows: its device and how many."""
        self._now = 0
        self._last: dict[torch.device, Tensor] = {}
        self._ends: dict[torch.device, Tensor] = {}
        for device in dict.fromkeys(device for device, _ in rows.values()):
            sizes = [count for place, count in rows.values() if place == device]
            self._last[device] = torch.full(
                (sum(sizes),), -WINDOW, dtype=torch.int32, device=device
            )
            self._ends[device] = (torch.tensor(sizes).cumsum(0) - 1).to(device, non_blocking=True)

    def remember(self, marks: Mapping[int, Tensor], void: Tensor | None) -> list[Tensor]:
        """Take in the touched rows of this step; three running sums over tensors per device.

        Where `void` is a number other than 0 the step does not count: its gradients overflowed.
        """
        sums = []
        for device, last in self._last.items():
            flat = torch.cat(
                [
                    marks[index].reshape(-1)
                    if index in marks
                    else torch.zeros(count, dtype=torch.bool, device=device)
                    for index, (place, count) in self.rows.items()
                    if place == device
                ]
            )
            if void is not None:  # whether it overflowed is known to the device alone
                flat = flat & (void.to(device) == 0)
            last.masked_fill_(flat, self._now)
            states = (flat, last > self._now - WINDOW, last >= 0)
            ends = self._ends[device]
            sums += [state.cumsum(0, dtype=torch.int32).index_select(0, ends) for state in states]
        self._now += 1
        return sums

    def counts(
        self, arrived: Sequence[NDArray[np.float64]]
    ) -> dict[int, tuple[float, float, float]]:
        """Of each tensor: rows that are zero, that were all along the window, that always were."""
        counts = {}
        for turn, device in enumerate(self._last):
            indices = [index for index, (place, _) in self.rows.items() if place == device]
            sums = np.diff(np.stack(arrived[3 * turn : 3 * turn + 3]), axis=1, prepend=0.0)
            for index, column in zip(indices, sums.T, strict=True):
                zero, dead, untouched = (self.rows[index][1] - column).tolist()
                counts[index] = zero, dead, untouched
        return counts


class GradientMemory:
    """What is remembered on devices of one set of tensors."""

    def __init__(self, tracked: TrackedOptimizer) -> None:
        self.rows = DeviceRowMemory(
            {
                index: (local(parameter).device, count)
                for index, (parameter, count) in enumerate(
                    zip(tracked.tensors(), tracked.rows, strict=True)
                )
                if parameter is not None and count
            }
        )
        self._sketchers: dict[tuple[object, ...], Sketcher] = {}

    def rows_for(self, present: dict[int, tuple[torch.device, int]]) -> DeviceRowMemory:
        """The memory of rows; begun anew where a tensor has become another."""
        remembered = self.rows.rows
        if any(remembered.get(index) != place for index, place in present.items()):
            self.rows = DeviceRowMemory(remembered | present)
        return self.rows

    def sketch(
        self, tracked: TrackedOptimizer, group: ShapeGroup
    ) -> tuple[Sketcher, Tensor, Tensor]:
        """Who sketches the group, the sums of whole groups of elements, and those outside."""
        sketcher = self._sketcher(tracked, group)
        whole, edge = sketcher.sums(group)
        return sketcher, turned(whole), edge

    def _sketcher(self, tracked: TrackedOptimizer, group: ShapeGroup) -> Sketcher:
        device, count = group.matrix.device, group.matrix.shape[1]
        key = device, count, *group.indices
        if key not in self._sketchers:
            if len(self._sketchers) == _KEPT:
                self._sketchers.clear()
            places = [
                SketchPlace(
                    int(tracked.seeds[i]), int(tracked.offsets[i]), int(tracked.wholes[i]), count
                )
                for i in group.indices
            ]
            self._sketchers[key] = Sketcher(places, device)
        return self._sketchers[key]


@dataclass(frozen=True)
class _GradientGroup(SentGroup):
    outside: slice | None
    sketcher: Sketcher | None


@dataclass(frozen=True)
class SentGradients:
    """What is under way; `measured` reads it when it is here."""

    total: int
    groups: list[_GradientGroup]
    rows: DeviceRowMemory
    marks: slice
    turned: slice
    factor: slice
    last_sketch: NDArray[np.float32]
    """As it was when this was sent: the optimizer may have got other tensors since."""

    def measured(
        self,
        arrived: Parts,
        states: NDArray[np.uint8],
        transform: GradTransform,
        multiplier: float,
        cosines: bool,
    ) -> FamilyRows:
        """The rows, as the kernel would have given them."""
        states = states.copy()
        if not transform.undoable:
            states[states == State.MEASURED] = State.CLIPPED
        records = sent_records(self.groups, self.total, arrived)
        counts = np.zeros((3, self.total), np.uint64)
        for index, three in self.rows.counts(arrived[self.marks]).items():
            counts[:, index] = three
        records["zero_rows"], dead, untouched = counts
        rows = moment_rows(Family.GRAD, records, states, multiplier)
        rows["grad_dead_rows"], rows["grad_untouched_rows"] = dead, untouched
        if self.turned.stop > self.turned.start:
            sketch = self._sketches(arrived)
            seen = np.asarray(~np.isnan(sketch).all(axis=1))
            fill_sketches(rows, sketch, multiplier, seen, self.last_sketch, cosines=cosines)
        histograms: HistogramTable | None = None
        applied = float(arrived[self.factor][0][0]) if self.factor.stop > self.factor.start else 1.0
        shift = shift_to_raw(multiplier, applied)
        if shift is not None:
            histograms = histograms_of(self.groups, arrived, records, shift)
        return FamilyRows(Family.GRAD, blank(Family.GRAD, rows, states), states, histograms)

    def _sketches(self, arrived: Parts) -> NDArray[np.float32]:
        """NaN where there is no gradient."""
        sketches = np.full((self.total, SKETCH_WIDTH), np.nan, np.float32)
        sketched = [group for group in self.groups if group.sketcher is not None]
        for group, buckets in zip(sketched, arrived[self.turned], strict=True):
            assert group.sketcher is not None
            assert group.outside is not None
            (outside,) = arrived[group.outside]
            table = buckets.reshape(-1, SKETCH_WIDTH)
            sketches[group.indices] = group.sketcher.finish(table, outside)
        return sketches


def send_gradients(
    load: Load,
    memory: GradientMemory,
    tracked: TrackedOptimizer,
    tensors: Sequence[Tensor | None],
    *,
    factor: Tensor | None,
    void: Tensor | None,
    histograms: bool,
    sketches: bool,
) -> SentGradients:
    """`factor` makes the histograms raw; `void` says that the step will be skipped."""
    groups, sums, marks = [], [], {}
    present: dict[int, tuple[torch.device, int]] = {}
    for group in same_shape_groups(tensors, tracked.offsets % SKETCH_WIDTH):
        device = group.matrix.device
        sketch = counts = sketcher = outside = None
        if sketches:
            sketch = supported("sketches", device, partial(memory.sketch, tracked, group))
        if sketch is not None:
            sketcher, whole, edge = sketch
            sums.append(whole)
            outside = load.add(edge)
        if histograms:
            counts = supported("histograms", device, partial(bins, group, factor))
        binned = load.add(*(counts or ()))
        widths = [piece.shape[1] for piece in group.pieces]
        place = load.add(*moments_of(group))
        groups.append(_GradientGroup(list(group.indices), widths, place, binned, outside, sketcher))
        if group.rows:
            for index, line in zip(group.indices, touched(group).unbind(0), strict=True):
                marks[index] = line
                present[index] = device, group.rows
    rows = memory.rows_for(present)
    return SentGradients(
        len(tensors),
        groups,
        rows,
        load.add(*rows.remember(marks, void)),
        load.add(*sums),
        load.add(factor) if histograms and factor is not None else load.add(),
        tracked.last_sketch,
    )


def restoring(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor | None:
    """By what the gradients must be multiplied to be what backward left; 1 where nothing fits.

    Needed on the device before the samples of `GradientSampler` have come over. As in
    `clipping.transform_between`, only that here all samples are one.
    """
    if not pairs:
        return None
    device = pairs[0][1].device
    kind = wide(device)
    here = [pair for pair in pairs if pair[1].device == device]
    was, now = (cleaned(torch.cat(side)).to(kind) for side in zip(*here, strict=True))
    tolerance = max(TOLERANCE, *(2 * torch.finfo(pair[1].dtype).eps for pair in here))
    factor = (was * now).sum() / (was * was).sum()
    rest = torch.linalg.vector_norm(now - factor * was)
    fits = rest <= tolerance * torch.linalg.vector_norm(now)
    fits = fits & (factor > 0) & (was != now).any()
    return torch.where(fits, 1 / factor, 1.0)


def shift_to_raw(multiplier: float, applied: float) -> int | None:
    """By how many powers of two bins are moved that were taken after `applied`.

    `multiplier` is what the samples say would have been right. None where they differ by more
    than powers of two, which no moving of bins can mend.
    """
    rest = multiplier / applied if applied else 0.0
    if not isfinite(rest) or rest <= 0:
        return None
    mantissa, exponent = frexp(rest)
    if abs(mantissa / 0.5 - 1) < _CLOSE:
        return exponent - 1
    return exponent if abs(mantissa - 1) < _CLOSE else None
