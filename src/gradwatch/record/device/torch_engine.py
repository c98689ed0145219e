"""The engine that needs nothing but torch: every operation works on a slab of many tensors.

What a device computes are sums of chunks, put together there for each tensor; what they mean is
worked out on the host. A call launches at most about 500 operations: tensors that would need more
are left for the next call, which begins with them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import ADAM, MOMENTS, SKETCH_WIDTH, UPDATE, BinTable, sparse_bins
from gradwatch.kernel.batch import DOUBLE_BINS, FLOAT_BINS
from gradwatch.kernel.plain import SPREAD_ROWS, spread_rows
from gradwatch.record.backend_cpu import SAMPLE, pick
from gradwatch.record.device.chunks import (
    BITS,
    BUNCH,
    EVERY_GROUP_UP_TO,
    FORMS,
    RESULTS,
    SETS,
    SHIFTS,
    SPAN,
    WORK,
    chunk_hashes,
    chunk_sketches,
    chunk_sums,
    count,
    count_bins,
    counts_of,
    dense_bins,
    hashes_of,
    merged_sums,
    records_of,
    sketch_words,
    units,
)
from gradwatch.record.device.engine import (
    MOST_MEMORY,
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.slabs import CHUNK, Layout, Slab, lay_out
from gradwatch.record.device.transfer import Load, at_least_single, cleaned, wide
from gradwatch.record.guard import log
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import (
    KERNEL_DTYPES,
    aligned,
    local,
    number,
    on_accelerator,
    rows_lie_whole,
)
from gradwatch.stats import State
from gradwatch.stats.rows import WINDOW

MOST_LAUNCHES = 500
"""A stream holds about a thousand; who launches more waits for the device."""
_NAN, _INFINITY = float("nan"), float("inf")
_Made = TypeVar("_Made")
_Kept = TypeVar("_Kept")
unsupported: set[tuple[str, str]] = set()
"""Type of device, and what it has no operation or no room for."""


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


def flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory where its rows lie whole in it, as the kernel reads."""
    tensor = tensor.detach()
    if rows_lie_whole(tuple(tensor.shape), tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return tensor.reshape(-1)


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


# -- rows --------------------------------------------------------------------------------------

_STACKED = 1 << 19
"""Tensors of more elements are not copied to have their rows looked at together."""


def by_shape(
    tensors: Sequence[Tensor | None], most: int, rows: int | None = None
) -> list[list[int]]:
    """Indices of matrices of one size and type that have at most so many elements (in `rows`)."""
    alike: dict[tuple[int, int, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None and tensor.dim() > 1:
            alike.setdefault((tensor.shape[0], tensor.numel(), tensor.dtype), []).append(index)
    groups = []
    for (many, size, _), indices in alike.items():
        at_once = max(1, most // (size if rows is None else rows * size // many))
        groups += [indices[i : i + at_once] for i in range(0, len(indices), at_once)]
    return groups


def touched_rows(tensors: Sequence[Tensor | None]) -> dict[int, Tensor]:
    """[row] of each matrix: its largest magnitude, which is not 0 where the row was touched."""
    sizes: dict[int, Tensor] = {}
    for group in by_shape(tensors, 8 * _STACKED):
        lines = [_lines(tensor) for index in group if (tensor := tensors[index]) is not None]
        if lines[0].numel() > _STACKED or len(lines) == 1:
            found = [torch.linalg.vector_norm(line, _INFINITY, dim=1) for line in lines]
        else:
            found = list(torch.linalg.vector_norm(torch.stack(lines), _INFINITY, dim=2).unbind(0))
        sizes |= dict(zip(group, found, strict=True))
    return sizes


def _lines(tensor: Tensor) -> Tensor:
    return flat(tensor).view(tensor.shape[0], -1)


def _rows_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.dim() < 2 else tensor.shape[0]


def spread(matrices: Sequence[Tensor]) -> Tensor:
    """[2, matrix]: largest distance of some rows from row 0, and largest norm among them all."""
    device, kind = matrices[0].device, wide(matrices[0].device)
    chosen = _chosen_rows(matrices[0].shape[0], device)
    rows = torch.stack([_lines(one).index_select(0, chosen) for one in matrices]).to(kind)
    # In units of the largest element: no square leaves the range of the type.
    unit = torch.linalg.vector_norm(rows, _INFINITY, dim=(1, 2), keepdim=True)
    rows = rows / unit.clamp_min(torch.finfo(kind).tiny)
    away = torch.linalg.vector_norm(rows - rows[:, :1], 2, dim=2)
    return torch.stack([away.amax(1), torch.linalg.vector_norm(rows, 2, dim=2).amax(1)])


@lru_cache(maxsize=256)
def _chosen_rows(rows: int, device: torch.device) -> Tensor:
    return torch.tensor([0, *spread_rows(rows)]).to(device, non_blocking=True)


@lru_cache(maxsize=64)
def _there(numbers: bytes, device: torch.device) -> Tensor:
    """Whole numbers that seldom change, kept on a device."""
    return torch.from_numpy(np.frombuffer(numbers, np.int64).copy()).to(device, non_blocking=True)


@lru_cache(maxsize=64)
def _filling(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is put into the gaps of slabs."""
    return torch.full((CHUNK,), value, dtype=dtype, device=device)


# -- steps -------------------------------------------------------------------------------------


def change(old: Tensor, new: Tensor, gradient: Tensor) -> Tensor:
    """[7, chunk]: coordinates that are the same, pulled at, both; norms of change and weight."""
    bits = BITS[old.itemsize]  # to compare NaN with NaN, and to tell −0 from 0
    same, pulled = old.view(bits) == new.view(bits), gradient != 0
    masks = count(same), count(pulled), count(same & pulled)
    away = cleaned(at_least_single(new) - at_least_single(old))
    counts = counts_of(*masks, dtype=away.dtype)
    return torch.stack([*counts, *_norm(away), *_norm(cleaned(old))])


def ratio(gradient: Tensor, second: Tensor, correction: Tensor, epsilon: Tensor) -> Tensor:
    """[4, chunk]: coordinates with √v̂ < ε, with a finite g/(√v̂+ε), and its norm."""
    root = (second / correction).sqrt_()
    small = count(root < epsilon)
    ratios = torch.div(gradient, root.add_(epsilon), out=root)
    finite = cleaned(ratios)
    counts = counts_of(small, count(finite == ratios), dtype=finite.dtype)
    return torch.stack([*counts, *_norm(finite)])


def _norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each chunk in units of its largest magnitude, and the unit; `x` is used up."""
    unit, inverse = units(torch.linalg.vector_norm(x, _INFINITY, dim=1))
    return torch.linalg.vector_norm(x.mul_(inverse[:, None]), 2, dim=1), unit


def _pick(tensor: Tensor) -> Tensor:
    """In the order of indices, which is the same for a weight and its gradient."""
    return pick(tensor.detach()).reshape(-1)


# -- the engine --------------------------------------------------------------------------------

_KEPT = 8
"""Layouts of one set of tensors; there are more where gradients come and go."""


class _Plan(NamedTuple):
    """What is known of some tensors from their sizes and places alone, and kept."""

    layout: Layout
    roots: NDArray[np.float64]
    """What makes up for the elements that sketches leave out."""
    marks: Tensor
    """[2, tensor + 1]: the seed, and the number of the first bunch of 32 or 256 elements."""
    sets: Tensor
    """[2, tensor + 1]: the first set of counters, and how many more there are."""
    counters: "dict[torch.dtype, _CounterSets]"
    work: int
    """Bytes for a slab and all that is made of it."""


class _CounterSets(NamedTuple):
    """Which tensors count in which sets: the large ones first, each in several."""

    order: NDArray[np.int64]
    large: int

    @property
    def many(self) -> int:
        return len(self.order) + (SETS - 1) * self.large


def _make_plan(
    shapes: Sequence[tuple[int, torch.dtype]], places: Places, sketches: bool, device: torch.device
) -> _Plan:
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
        counters[dtype] = _CounterSets(np.concatenate([large, others]), len(large))
    first = (places.offsets - leads) // (SKETCH_WIDTH * bunches)
    marks = np.zeros((2, len(counts) + 1), np.int64)
    marks[0, :-1], marks[1, :-1] = places.seeds.view(np.int64), first
    return _Plan(
        layout,
        np.sqrt(bunches),
        torch.from_numpy(marks).to(device, non_blocking=True),
        torch.from_numpy(sets).to(device, non_blocking=True),
        counters,
        work,
    )


class TorchEngine(Engine):
    """Measures tensors of one device by torch's own operations."""

    name: ClassVar[str] = "torch"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._wide = wide(device)
        self._plans: dict[object, Any] = {}
        self._next: dict[str, int] = {}
        """Where the next call of each kind begins: with the first tensor the last one left out."""

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
        plan = self._kept(key, lambda: _make_plan(shapes, placed, wanted.sketches, self._device))
        found = _Found(plan, wanted, self._device)
        for slab in plan.layout.slabs:
            dtype = flats[slab.pieces[0].tensor].dtype
            x = at_least_single(slab.lay(flats, _filling(_NAN, dtype, self._device)))
            found.take(x, slab)
            del x  # before the next one is laid
        finish_rows = self._rows(load, some, wanted)
        finish_spreads = self._spreads(load, some) if wanted.hashes else None
        finish = found.send(load)
        counts = np.array([count for count, _ in shapes])

        def finished(arrived: Parts) -> DeviceMeasurement:
            result = finish(arrived, len(tensors), at, counts)
            zero, dead, untouched = finish_rows(arrived)
            result.records["zero_rows"][at] = zero[at]
            spreads = None if finish_spreads is None else finish_spreads(arrived)
            return result._replace(dead_rows=dead, untouched_rows=untouched, spreads=spreads)

        return Sent(load.parts, finished)

    def _chosen(self, tensors: Sequence[Tensor | None], wanted: Wanted) -> list[int]:
        """The tensors of this call, beginning where the last one of its kind ended."""
        slab = 30 + 19 * wanted.sketches + 34 * wanted.histograms + 12 * wanted.hashes
        most = (WORK - 8_000_000 - 20_000_000 * wanted.sketches) * 4 // 9
        costs = np.zeros(len(tensors))
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                size = max(tensor.itemsize, 4) * tensor.numel()
                rows = (tensor.numel() > _STACKED) + wanted.hashes
                costs[index] = slab * size / most + (tensor.dim() > 1) * rows + 0.01
        fixed = 100 + slab + 55 * wanted.sketches + 80 * wanted.hashes
        return self._turn("weights" if wanted.hashes else "gradients", costs, fixed)

    def _turn(self, kind: str, costs: NDArray[np.float64], fixed: float) -> list[int]:
        """As many as can be had for what a call may cost, in turn; at least one."""
        if costs.sum() + fixed <= MOST_LAUNCHES:
            return [int(i) for i in np.flatnonzero(costs)]
        order = np.roll(np.arange(len(costs)), -self._next.get(kind, 0))
        order = order[costs[order] > 0]
        fits = int(np.searchsorted(costs[order].cumsum(), MOST_LAUNCHES - fixed, side="right"))
        fits = max(fits, 1)
        self._next[kind] = int(order[fits]) if fits < len(order) else 0
        return sorted(order[:fits].tolist())

    # -- rows --------------------------------------------------------------------------------

    def _rows(
        self, load: Load, tensors: Sequence[Tensor | None], wanted: Wanted
    ) -> Callable[[Parts], NDArray[np.uint64]]:
        """[3, tensor]: rows that are zero, that were all along the window, that always were."""
        times, own = wanted.rows, [_rows_of(tensor) for tensor in tensors]
        rows = np.array(own, np.int64) if times is None else times.rows
        counts = np.zeros((3, len(rows)), np.uint64)
        filled = np.flatnonzero(rows)
        if not len(filled):
            return lambda _: counts
        marks = touched_rows([t if rows[i] == own[i] else None for i, t in enumerate(tensors)])
        touched = self._joined(marks, rows, filled)
        states = [touched]
        if times is not None:
            if wanted.void is not None:  # whether it overflowed is known to the device alone
                touched = touched & (wanted.void == 0)
            times.last.masked_fill_(touched, times.now)
            states = [touched, times.last > times.now - WINDOW, times.last >= 0]
            times.now += 1
        ends = _there((rows[filled].cumsum() - 1).tobytes(), self._device)
        running = torch.stack(states).cumsum(1, dtype=torch.int32).index_select(1, ends)
        place = load.add(running)

        def finish(arrived: Parts) -> NDArray[np.uint64]:
            sums = arrived[place][0].reshape(len(states), -1)
            counts[: len(states), filled] = rows[filled] - np.diff(sums, axis=1, prepend=0.0)
            return counts

        return finish

    def _joined(
        self, marks: dict[int, Tensor], rows: NDArray[np.int64], filled: NDArray[np.int64]
    ) -> Tensor:
        there = [marks.get(int(index)) for index in filled]
        present = [one for one in there if one is not None]
        if len({one.dtype for one in present}) > 1:  # joined as they are they are copied singly
            present = [one != 0 for one in present]
        kind = present[0].dtype if present else torch.bool
        nothing = torch.zeros(int(rows.max()), dtype=kind, device=self._device)
        touched = iter(present)
        parts = [
            nothing[: int(rows[index])] if one is None else next(touched)
            for index, one in zip(filled, there, strict=True)
        ]
        return torch.cat(parts) != 0

    def _spreads(
        self, load: Load, tensors: Sequence[Tensor | None]
    ) -> Callable[[Parts], NDArray[np.float32]]:
        taken: list[tuple[list[int], slice]] = []
        for group in by_shape(tensors, _STACKED, SPREAD_ROWS + 1):
            matrices = [tensor for i in group if (tensor := tensors[i]) is not None]
            if matrices[0].shape[0] > 1:
                made = supported("spreads of rows", self._device, partial(spread, matrices))
                if made is not None:
                    taken.append((group, load.add(made)))

        def finish(arrived: Parts) -> NDArray[np.float32]:
            spreads = np.full(len(tensors), np.nan, np.float32)
            for group, place in taken:
                distance, size = arrived[place][0].reshape(2, -1)
                with np.errstate(all="ignore"):
                    spreads[group] = np.where(size == 0, 0.0, distance / size)
            return spreads

        return finish

    # -- the step ----------------------------------------------------------------------------

    def snapshot(self, tensors: Sequence[Tensor | None]) -> Snapshot:
        """Whole copies in half of MOST_MEMORY: the comparison takes the other half."""
        need = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        whole = need <= MOST_MEMORY // 2
        large = [float(t is not None and t.numel() > SAMPLE) * 3 for t in tensors]
        costs = np.array([0.01 * (t is not None) for t in tensors]) + (0 if whole else large)
        chosen = set(self._turn("snapshot", costs, MOST_LAUNCHES / 2))
        picked = [
            None if t is None or i not in chosen else flat(t) if whole else _pick(t)
            for i, t in enumerate(tensors)
        ]
        copies: list[Tensor | None] = [None] * len(tensors)
        for dtype in {one.dtype for one in picked if one is not None}:
            same = [i for i, one in enumerate(picked) if one is not None and one.dtype is dtype]
            parts = [one for i in same if (one := picked[i]) is not None]
            joined = torch.cat(parts).split([one.shape[0] for one in parts])
            for index, copy in zip(same, joined, strict=True):
                copies[index] = copy
        return Snapshot(copies, whole)

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
            updates = self._updates(load, before, after, gradients)
            room = WORK // 2 if before.whole else WORK
            launched = 40 + 2 * sum(c is not None and len(c) == SAMPLE for c in before.copies)
        if divisors is not None:
            ratios = self._ratios(load, gradients, divisors, room, launched)
        nothing = np.zeros(len(after), np.int64)

        def finish(arrived: Parts) -> DeviceSteps:
            records, compared = (None, nothing) if updates is None else updates(arrived)
            return DeviceSteps(records, compared, None if ratios is None else ratios(arrived))

        return Sent(load.parts, finish)

    def _updates(
        self,
        load: Load,
        before: Snapshot,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
    ) -> Callable[[Parts], tuple[NDArray[np.void], NDArray[np.int64]]]:
        held: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for index, (old, now) in enumerate(zip(before.copies, after, strict=False)):
            if old is None or now is None or (now.dtype, now.device) != (old.dtype, old.device):
                continue
            if old.shape[0] != (now.numel() if before.whole else min(now.numel(), SAMPLE)):
                continue
            g = gradients[index]
            if g is None or g.shape != now.shape:
                pull = torch.zeros_like(old)
            else:
                pull = flat(_fitting(g, now)) if before.whole else _pick(g)
            held[index] = old, flat(now) if before.whole else _pick(now), pull
        indices = list(held)
        counts = np.zeros(len(after), np.int64)
        counts[indices] = [old.shape[0] for old, _, _ in held.values()]
        finish_sums = self._summed(
            load,
            list(held.values()),
            (0.0, 0.0, 0.0),
            WORK // 2 // 24,
            3,
            lambda _, parts: change(*parts),
        )

        def finish(arrived: Parts) -> tuple[NDArray[np.void], NDArray[np.int64]]:
            records = np.zeros(len(after), UPDATE)
            if indices:
                (same, pulled, lost, moved, weight), room = finish_sums(arrived)
                records["changed"][indices] = room - same
                records["with_gradient"][indices], records["lost"][indices] = pulled, lost
                records["update_norm"][indices] = np.sqrt(moved)
                records["before_norm"][indices] = np.sqrt(weight)
            return records, counts

        return finish

    def _ratios(
        self,
        load: Load,
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors,
        room: int,
        launched: int,
    ) -> Callable[[Parts], NDArray[np.void]]:
        most = room // 18
        costs = np.zeros(len(gradients))
        for index, (g, v) in enumerate(zip(gradients, divisors.seconds, strict=True)):
            if g is not None and v is not None and local(v).shape == g.shape:
                costs[index] = 24 * g.numel() * max(g.itemsize, 4) / 4 / most + 0.01
        chosen = self._turn("ratios", costs, 60 + launched)
        held = []
        for index in chosen:
            g, v = gradients[index], divisors.seconds[index]
            assert g is not None
            assert v is not None
            held.append((flat(g), flat(_fitting(local(v), g))))
        numbers = self._corrections(divisors, chosen)

        def parts(owners: Tensor, slabs: Sequence[Tensor]) -> Tensor:
            g, v = (at_least_single(slab) for slab in slabs)
            correction, epsilon = numbers.index_select(1, owners).to(v.dtype).unsqueeze(2)
            return ratio(g, v, correction, epsilon)

        finish_sums = self._summed(load, held, (0.0, _INFINITY), most, 2, parts)
        counts = np.array([g.shape[0] for g, _ in held])

        def finish(arrived: Parts) -> NDArray[np.void]:
            records = np.full(len(gradients), np.nan, ADAM)
            if chosen:
                (small, finite, squares), room = finish_sums(arrived)
                with np.errstate(all="ignore"):  # gaps are finite
                    records["ratio_rms"][chosen] = np.sqrt(squares / (finite - room + counts))
                    records["eps_fraction"][chosen] = small / counts
            return records

        return finish

    def _corrections(self, divisors: DeviceDivisors, chosen: list[int]) -> Tensor:
        """[2, tensor]: what v is divided by, and ε."""
        betas, epsilons = divisors.betas[chosen], divisors.epsilons[chosen]
        steps = [divisors.steps[index] for index in chosen]
        if not any(on_accelerator(step) for step in steps):
            fixed = np.stack([1.0 - betas ** np.array([number(step) for step in steps]), epsilons])
            return torch.from_numpy(fixed).to(self._device, self._wide, non_blocking=True)
        counts = torch.cat(
            [
                step.detach().reshape(1).to(self._device, self._wide, non_blocking=True)
                if isinstance(step, Tensor)
                else torch.full((1,), float(step), dtype=self._wide, device=self._device)
                for step in steps
            ]
        )
        fixed = np.stack([betas, epsilons])
        numbers = torch.from_numpy(fixed).to(self._device, self._wide, non_blocking=True)
        return torch.stack([1 - torch.pow(numbers[0], counts), numbers[1]])

    def _summed(
        self,
        load: Load,
        tensors: Sequence[tuple[Tensor, ...]],
        gaps: tuple[float, ...],
        most: int,
        counted: int,
        measure: Callable[[Tensor, Sequence[Tensor]], Tensor],
    ) -> Callable[[Parts], tuple[NDArray[np.float64], NDArray[np.int64]]]:
        """Sums over each of the tensors, several of one size side by side.

        `measure` gives some counts of each chunk and then norms, each with its unit: their squares
        are added up.
        """
        if not tensors:
            return lambda _: (np.zeros((0, 0)), np.zeros(0, np.int64))
        kinds = [tuple(one.dtype for one in several) for several in tensors]
        counts = [several[0].shape[0] for several in tensors]
        key = "step", tuple(counts), tuple(kinds)
        most = most * 4 // max(4, *(one.itemsize for kind in kinds for one in kind))
        layout = self._kept(
            key, lambda: lay_out(counts, kinds, [0] * len(counts), most, self._device)
        )
        parts = []
        for slab in layout.slabs:
            sides = [
                slab.lay([several[side] for several in tensors], _filling(gap, dtype, self._device))
                for side, (gap, dtype) in enumerate(
                    zip(gaps, kinds[slab.pieces[0].tensor], strict=True)
                )
            ]
            parts.append(measure(layout.owners[slab.first : slab.first + slab.chunks], sides))
            del sides
        numbers = _with_nothing(parts, self._wide)
        squares = (numbers[counted::2] * numbers[counted + 1 :: 2]) ** 2
        sums = layout.sums(torch.cat([numbers[:counted], squares]))
        place = load.add(sums)
        room = layout.room

        def finish(arrived: Parts) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
            return arrived[place][0].reshape(len(sums), -1)[:, :-1], room

        return finish

    def _kept(self, key: object, make: Callable[[], _Kept]) -> _Kept:
        """What is made of sizes alone, made once."""
        if key not in self._plans:
            if len(self._plans) >= _KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = make()
        kept: _Kept = self._plans[key]
        return kept

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


def _fitting(tensor: Tensor, like: Tensor) -> Tensor:
    fitting = aligned(tensor, like)
    assert fitting is not None
    return fitting


def _with_nothing(parts: Sequence[Tensor], kind: torch.dtype) -> Tensor:
    """[…, chunk + 1], of the slabs' […, chunk]; the last is zero."""
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1:  # joined as they are they would be copied one by one
        parts = [part.to(kind) for part in parts]
    nothing = torch.zeros((*parts[0].shape[:-1], 1), dtype=parts[0].dtype, device=parts[0].device)
    return torch.cat([*parts, nothing], dim=-1).to(kind)


_WORDS = 1 << 19
"""So many words of sketches are made at once."""

# -- one measurement ---------------------------------------------------------------------------


class _Found:
    """What was found of the slabs so far."""

    def __init__(self, plan: _Plan, wanted: Wanted, device: torch.device) -> None:
        self._plan, self._wanted, self._device = plan, wanted, device
        self._sums: list[Tensor] = []
        self._sketches: list[Tensor] = []
        self._hashes: list[Tensor] = []
        self._counters: dict[torch.dtype, Tensor] = {}
        layout = plan.layout
        self._marks = layout.of_owner(plan.marks) if wanted.sketches else None
        self._made_from = self._made_to = 0
        if wanted.histograms:
            starts, mask = layout.of_owner(plan.sets)
            self._lines = starts + (layout.parts & mask)
            for dtype in plan.counters:
                self._counters[dtype] = torch.zeros(
                    plan.counters[dtype].many, FORMS[dtype].keys, dtype=torch.int32, device=device
                )

    def take(self, x: Tensor, slab: Slab) -> None:
        """What is wanted of a slab that is laid out."""
        here = slice(slab.first, slab.first + slab.chunks)
        parts = self._plan.layout.parts[here]
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
            self._hashes.append(chunk_hashes(x, parts, self._plan.work))

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
        place = load.add(merged_sums(layout, _with_nothing(self._sums, kind)))
        self._sums.clear()
        sketch = hashed = slice(0, 0)
        if self._marks is not None:
            table = _with_nothing([one.t() for one in self._sketches], self._sketches[0].dtype)
            self._sketches.clear()
            sketch = load.add(layout.sums(table))
        if self._hashes:
            total = layout.sums(_with_nothing(self._hashes, torch.int64))
            shifts = _there(np.array(SHIFTS).tobytes(), self._device)
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
    plan: _Plan, arrived: dict[torch.dtype, Parts], total: int, at: NDArray[np.int64]
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
