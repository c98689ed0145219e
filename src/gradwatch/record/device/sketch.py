"""Sketches of gradients on accelerators.

A sketch (`kernel.sketch` says what it is) is made of whole groups of 32 neighbours. Which groups
are taken and with which signs never changes, so both are laid out once and kept on the device:
about 0.16 bytes per element of a tensor of more than 65,536 elements, 1.5 to 9 of a smaller one.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import SKETCH_WIDTH
from gradwatch.kernel.plain import scramble
from gradwatch.record.device.groups import LIMIT, ShapeGroup
from gradwatch.record.device.statistics import cleaned, wide

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
