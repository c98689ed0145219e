"""The engine that needs nothing but torch: every operation works on a slab of many tensors.

What a device computes are sums of chunks, put together there for each tensor; what they mean is
worked out on the host. A call launches at most about 500 operations: tensors that would need more
are left for the next call, which begins with them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS, SKETCH_WIDTH, BinTable, sparse_bins
from gradwatch.kernel.batch import DOUBLE_BINS, FLOAT_BINS
from gradwatch.record.backend_cpu import SAMPLE
from gradwatch.record.device.chunks import (
    BUNCH,
    FORMS,
    RESULTS,
    SETS,
    SHIFTS,
    WORK,
    chunk_hashes,
    chunk_sketches,
    chunk_sums,
    count_bins,
    dense_bins,
    hash_places,
    hashes_of,
    merged_sums,
    records_of,
    sketch_words,
)
from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.slabs import CHUNK, Slab, filling, flat, slabs_of, with_nothing
from gradwatch.record.device.torch_plan import Planner, SlabPlan, make_plan, supported
from gradwatch.record.device.torch_rows import STACKED, send_rows, send_spreads, there
from gradwatch.record.device.torch_steps import copy_weights, send_ratios, send_updates
from gradwatch.record.device.transfer import Load, at_least_single, cleaned, wide
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import KERNEL_DTYPES, local
from gradwatch.stats import State

_NAN, _INFINITY = float("nan"), float("inf")


def readable(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], NDArray[np.uint8]]:
    """The pieces torch can compute with, and why others are left out."""
    states = np.zeros(len(tensors), np.uint8)
    kept: list[Tensor | None] = []
    for index, tensor in enumerate(tensors):
        piece = None if tensor is None else local(tensor).detach()
        if piece is not None and piece.is_complex() and piece.layout is torch.strided:
            piece = torch.view_as_real(piece.resolve_conj())
        if piece is None:
            states[index] = State.NO_GRADIENT
        elif piece.is_meta or piece.layout is not torch.strided or piece.dtype not in KERNEL_DTYPES:
            states[index], piece = State.UNSUPPORTED, None
        kept.append(piece if piece is not None and piece.numel() else None)
    return kept, states


class TorchEngine(Engine):
    """Measures tensors of one device by torch's own operations."""

    name: ClassVar[str] = "torch"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._planner = Planner(device)

    def measure(
        self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        """Slab by slab; the rows of matrices apart, for they do not end where chunks do."""
        chosen = self._chosen(tensors, wanted)
        if not chosen:
            return Sent((), lambda _: DeviceMeasurement(np.zeros(len(tensors), MOMENTS)))
        at, load = np.array(chosen), Load()
        some: list[Tensor | None] = [None] * len(tensors)
        for index in chosen:
            some[index] = tensors[index]
        flats = [flat(tensor) for tensor in some if tensor is not None]
        shapes = tuple((one.shape[0], one.dtype) for one in flats)
        placed = Places(places.seeds[at], places.offsets[at], places.wholes[at])
        key = shapes, wanted.sketches, *(part.tobytes() for part in vars(placed).values())
        plan = self._planner.kept(
            key, lambda: make_plan(shapes, placed, wanted.sketches, self._device)
        )
        found = _Found(plan, wanted, self._device)
        for slab in plan.layout.slabs:
            dtype = flats[slab.pieces[0].tensor].dtype
            x = at_least_single(slab.lay(flats, filling(_NAN, dtype, self._device)))
            found.take(x, slab, dtype)
            del x  # before the next one is laid
        finish_rows = send_rows(load, some, wanted, self._device)
        finish_spreads = send_spreads(load, some, self._device) if wanted.hashes else None
        finish = found.send(load)
        counts, total = np.array([count for count, _ in shapes]), len(tensors)

        def finished(arrived: Parts) -> DeviceMeasurement:
            result = finish(arrived, total, at, counts)
            zero, dead, untouched = finish_rows(arrived)
            result.records["zero_rows"][at] = zero[at]
            spreads = None if finish_spreads is None else finish_spreads(arrived)
            return result._replace(dead_rows=dead, untouched_rows=untouched, spreads=spreads)

        return Sent(load.parts, finished)

    def _chosen(self, tensors: Sequence[Tensor | None], wanted: Wanted) -> list[int]:
        """The tensors of this call, beginning where the last one of its kind ended."""
        slab = 30 + 19 * wanted.sketches + 34 * wanted.histograms + 56 * wanted.hashes
        most = (WORK - 8_000_000 - 20_000_000 * wanted.sketches) // 9
        costs = np.zeros(len(tensors))
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                size = max(tensor.itemsize, 4) // 4 * tensor.numel()
                rows = (tensor.numel() > STACKED) + wanted.hashes
                costs[index] = slab * slabs_of(size, most) + (tensor.dim() > 1) * rows + 0.01
        fixed = 100 + slab + 10 * wanted.sketches + 35 * wanted.hashes
        return self._planner.turn("weights" if wanted.hashes else "gradients", costs, fixed)

    def snapshot(self, tensors: Sequence[Tensor | None]) -> Snapshot:
        """Whole copies in half of MOST_MEMORY: the comparison takes the other half."""
        return copy_weights(self._planner, tensors)

    def step(
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> Sent[DeviceSteps]:
        """Updates of what was copied; Adam's ratio of all tensors that fit into the call."""
        load = Load()
        updates = ratios = None
        room, launched = WORK, 0
        if before is not None:
            updates = send_updates(self._planner, load, before, after, gradients)
            room = WORK // 2 if before.whole else WORK
            launched = 40 + 2 * sum(c is not None and len(c) == SAMPLE for c in before.copies)
        if divisors is not None:
            ratios = send_ratios(self._planner, load, gradients, divisors, room, launched)
        nothing = np.zeros(len(after), np.int64)

        def finish(arrived: Parts) -> DeviceSteps:
            records, compared = (None, nothing) if updates is None else updates(arrived)
            return DeviceSteps(records, compared, None if ratios is None else ratios(arrived))

        return Sent(load.parts, finish)

    def output(self, tensor: Tensor) -> Tensor:
        """One read would do for another engine; here it is eleven operations."""
        return output_sums(tensor.detach())


def output_sums(tensor: Tensor) -> Tensor:
    """What `Engine.output` gives, in torch operations; torch.compile can trace it."""
    kind = wide(tensor.device)
    clean = cleaned(tensor)
    return torch.stack(
        [
            (tensor == 0).sum(dtype=kind),
            (clean != tensor).sum(dtype=kind),
            torch.linalg.vector_norm(clean, _INFINITY).to(kind),
            clean.sum(dtype=kind),
            torch.linalg.vector_norm(clean, 2, dtype=kind).square(),
        ]
    )


_WORDS = 1 << 19
"""So many words of sketches are made at once."""

# -- one measurement ---------------------------------------------------------------------------


class _Found:
    """What was found of the slabs so far."""

    def __init__(self, plan: SlabPlan, wanted: Wanted, device: torch.device) -> None:
        self._plan, self._wanted, self._device = plan, wanted, device
        self._sums: list[Tensor] = []
        self._sketches: list[Tensor] = []
        self._hashes: list[Tensor] = []
        self._counters: dict[torch.dtype, Tensor] = {}
        layout = plan.layout
        self._marks = layout.of_owner(plan.marks) if wanted.sketches else None
        self._made_from = self._made_to = 0
        if wanted.hashes:
            self._hash_places = hash_places(layout.parts, layout.of_owner(plan.spans))
        if wanted.histograms:
            starts, mask = layout.of_owner(plan.sets)
            self._lines = starts + (layout.parts & mask)
            for dtype in plan.counters:
                self._counters[dtype] = torch.zeros(
                    plan.counters[dtype].many, FORMS[dtype].keys, dtype=torch.int32, device=device
                )

    def take(self, x: Tensor, slab: Slab, dtype: torch.dtype) -> None:
        """What is wanted of a slab that is laid out; its elements were of this type."""
        here = slice(slab.first, slab.first + slab.chunks)
        self._sums.append(chunk_sums(x))
        if self._marks is not None:
            bunch = BUNCH if self._plan.roots[slab.pieces[0].tensor] > 1 else 1
            sketches = partial(self._sketch, x, slab, bunch)
            if (made := supported("sketches", self._device, sketches)) is None:
                self._marks = None
            else:
                self._sketches.append(made)
        if self._counters:
            lines, counters = self._lines[here], self._counters[x.dtype]
            count = partial(count_bins, x, lines, counters, self._wanted.factor, self._plan.work)
            if supported("histograms", self._device, count) is None:
                self._counters.clear()
        if self._wanted.hashes:
            where, work = self._hash_places[:, here], self._plan.work
            self._hashes.append(chunk_hashes(x, dtype, where, work, gaps=slab.has_gaps))

    def _sketch(self, x: Tensor, slab: Slab, bunch: int) -> Tensor:
        """With words that are made for this slab and those that follow it, as far as they fit."""
        assert self._marks is not None
        if slab.first >= self._made_to:
            slabs = self._plan.layout.slabs
            rest = [one for one in slabs if one.first >= slab.first and one.kind == slab.kind]
            most = slab.first + max(slab.chunks, _WORDS * bunch * SKETCH_WIDTH // CHUNK)
            self._made_to = max(e for s in rest if (e := s.first + s.chunks) <= most)
            some = slice(slab.first, self._made_to)
            seeds, first = self._marks[:, some]
            self._made_from = slab.first
            self._words = sketch_words(seeds, first, self._plan.layout.parts[some], bunch)
        begin = slab.first - self._made_from
        return chunk_sketches(x, self._words[begin : begin + slab.chunks], bunch)

    def send(
        self, load: Load
    ) -> Callable[[Parts, int, NDArray[np.int64], NDArray[np.int64]], DeviceMeasurement]:
        """Put the chunks together, and say what will be made of the numbers."""
        plan, layout, kind = self._plan, self._plan.layout, wide(self._device)
        place = load.add(merged_sums(layout, with_nothing(self._sums, kind)))
        self._sums.clear()
        sketch = hashed = slice(0, 0)
        if self._marks is not None:
            table = with_nothing([one.t() for one in self._sketches], self._sketches[0].dtype)
            self._sketches.clear()
            sketch = load.add(layout.sums(table))
        if self._hashes:
            total = layout.sums(with_nothing(self._hashes, torch.int64))
            shifts = there(np.array(SHIFTS).tobytes(), self._device)
            hashed = load.add((total[:-1, None] >> shifts) & 0xFFFF)
        counted = {
            dtype: load.add(*_few(counters, plan.counters[dtype].large))
            for dtype, counters in self._counters.items()
        }

        def finish(
            arrived: Parts, total: int, at: NDArray[np.int64], counts: NDArray[np.int64]
        ) -> DeviceMeasurement:
            records = np.zeros(total, MOMENTS)
            numbers = arrived[place][0].reshape(RESULTS, -1)[:, :-1]
            records[at] = records_of(numbers, counts, plan.layout.room)
            sketches = hashes = bins = None
            if sketch.stop:
                sketches = np.full((total, SKETCH_WIDTH), np.nan, np.float32)
                sums = arrived[sketch][0].reshape(SKETCH_WIDTH, -1).T[:-1]
                with np.errstate(over="ignore"):
                    sketches[at] = sums * plan.roots[:, None]
            if hashed.stop:
                hashes = np.zeros(total, np.uint64)
                hashes[at] = hashes_of(arrived[hashed][0])
            if counted:
                bins = _bins(plan, {d: arrived[p] for d, p in counted.items()}, total, at)
            return DeviceMeasurement(records, bins, sketches, hashes=hashes)

        return finish


def _few(counters: Tensor, large: int) -> list[Tensor]:
    """The counters of large tensors, whose sets are added up, and those of the others."""
    first = counters[: large * SETS].view(large, SETS, counters.shape[1]).sum(1, dtype=torch.int32)
    return [first, counters[large * SETS :]]


def _bins(
    plan: SlabPlan, arrived: dict[torch.dtype, Parts], total: int, at: NDArray[np.int64]
) -> BinTable:
    lowest, width = DOUBLE_BINS if torch.float64 in arrived else FLOAT_BINS
    dense = np.zeros((total, 2, width), np.uint64)
    for dtype, parts in arrived.items():
        form = FORMS[dtype]
        counts = np.concatenate([part.reshape(-1, form.keys) for part in parts])
        start = form.bins[0] - lowest
        dense[at[plan.counters[dtype].order], :, start : start + form.bins[1]] = dense_bins(
            counts, form
        )
    return sparse_bins(dense, lowest)
