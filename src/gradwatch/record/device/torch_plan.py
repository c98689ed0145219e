"""What an engine of torch operations knows before it measures: layouts, and whose turn it is."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import SKETCH_WIDTH
from gradwatch.record.device.chunks import BUNCH, EVERY_GROUP_UP_TO, SETS, SPAN, WORK
from gradwatch.record.device.engine import Places
from gradwatch.record.device.launches import MOST_LAUNCHES
from gradwatch.record.device.slabs import CHUNK, Layout, lay_out
from gradwatch.record.device.transfer import sent_to, wide
from gradwatch.record.guard import log

_MOST_KEPT = 8
"""Layouts of one set of tensors; there are more where gradients come and go."""
_Made = TypeVar("_Made")
unsupported: set[tuple[str, str]] = set()
"""Type of device, and what it has no operation or no room for."""


def supported(what: str, device: torch.device, make: Callable[[], _Made]) -> _Made | None:
    """What `make` gives; None where the device has no such operation, or no memory left for it.

    What a device cannot do is left out from then on, and said once; the rest is recorded.
    """
    key = device.type, what
    if key in unsupported:
        return None
    try:
        return make()
    except (RuntimeError, TypeError) as error:  # MPS has no float64 and says so by a TypeError
        unsupported.add(key)
        log.warning("gradwatch: %s are not recorded on %s: %s", what, device.type, error)
        return None


class Planner:
    """What is kept from call to call."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.wide = wide(device)
        self._kept: dict[object, Any] = {}
        self._next: dict[str, int] = {}
        """Where the next call of each kind begins: with the first tensor the last one left out."""

    def kept(self, key: object, make: Callable[[], _Made]) -> _Made:
        """What is made of sizes alone, made once."""
        if key not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = make()
        kept: _Made = self._kept[key]
        return kept

    def turn(self, kind: str, costs: NDArray[np.float64], fixed: float) -> list[int]:
        """As many as can be had for what a call may cost, in turn; at least one."""
        if costs.sum() + fixed <= MOST_LAUNCHES:
            return [int(i) for i in np.flatnonzero(costs)]
        order = np.roll(np.arange(len(costs)), -self._next.get(kind, 0))
        order = order[costs[order] > 0]
        fits = int(np.searchsorted(costs[order].cumsum(), MOST_LAUNCHES - fixed, side="right"))
        fits = max(fits, 1)
        self._next[kind] = int(order[fits]) if fits < len(order) else 0
        return sorted(order[:fits].tolist())


class CounterSets(NamedTuple):
    """Which tensors count in which sets: the large ones first, each in several."""

    order: NDArray[np.int64]
    large: int

    @property
    def many(self) -> int:
        """Sets in all."""
        return len(self.order) + (SETS - 1) * self.large


class SlabPlan(NamedTuple):
    """What is known of some tensors from their sizes and places alone, and kept."""

    layout: Layout
    roots: NDArray[np.float64]
    """What makes up for the elements that sketches leave out."""
    marks: Tensor
    """[2, tensor + 1]: the seed, and the number of the first bunch of 32 or 256 elements."""
    sets: Tensor
    """[2, tensor + 1]: the first set of counters, and how many more there are."""
    spans: Tensor
    """[3, tensor + 1]: places in the whole: of the first chunk, of the first element, behind the
    last one."""
    counters: dict[torch.dtype, CounterSets]
    work: int
    """Bytes for a slab and all that is made of it."""


def make_plan(
    shapes: Sequence[tuple[int, torch.dtype]], places: Places, sketches: bool, device: torch.device
) -> SlabPlan:
    """Of tensors of these sizes and types."""
    counts = np.array([count for count, _ in shapes])
    bunches = np.where(places.wholes > EVERY_GROUP_UP_TO, BUNCH, 1)
    leads = places.offsets % SPAN
    kinds: list[Any] = [dtype for _, dtype in shapes]
    if sketches:  # of slabs in which words stand for equally many elements
        kinds = list(zip(kinds, bunches.tolist(), strict=True))
    wide_types = [torch.float64 if dtype.itemsize == 8 else torch.float32 for _, dtype in shapes]
    # Nine bytes of each float32 of a slab, and what is kept of all chunks, are there at once.
    work = WORK - int(counts.sum()) // CHUNK * (72 + (4 * SKETCH_WIDTH + 48) * sketches)
    most = work * 4 // (9 * max(dtype.itemsize for dtype in wide_types))
    layout = lay_out(counts.tolist(), kinds, leads.tolist(), max(most, CHUNK), device)
    sets, counters = np.zeros((2, len(counts) + 1), np.int64), {}
    for dtype in set(wide_types):
        mine = np.array([i for i, one in enumerate(wide_types) if one is dtype])
        is_large = layout.room[mine] > SETS * SETS * CHUNK
        large, others = mine[is_large], mine[~is_large]
        sets[0, large], sets[1, large] = np.arange(len(large)) * SETS, SETS - 1
        sets[0, others] = len(large) * SETS + np.arange(len(others))
        counters[dtype] = CounterSets(np.concatenate([large, others]), len(large))
    first = (places.offsets - leads) // (SKETCH_WIDTH * bunches)
    marks = np.zeros((2, len(counts) + 1), np.int64)
    marks[0, :-1], marks[1, :-1] = places.seeds.view(np.int64), first
    spans = np.zeros((3, len(counts) + 1), np.int64)
    spans[:, :-1] = places.offsets - leads, places.offsets, places.offsets + counts
    return SlabPlan(
        layout,
        np.sqrt(bunches),
        sent_to(device, marks),
        sent_to(device, sets),
        sent_to(device, spans),
        counters,
        work,
    )
