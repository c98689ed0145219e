"""The engine that measures with Triton: all tensors of a type in one launch, one read of each.

Sizes are planned once and kept, with the memory that programs leave their partial results in; a
step only sends a small table of addresses. Triton comes with torch on Linux and is no dependency:
nobody imports this module before the engine is asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import ge
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.backend_cpu import SAMPLE
from gradwatch.record.device import triton_kernels, triton_steps
from gradwatch.record.device.engine import (
    MOST_MEMORY,
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    RowTimes,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.triton_kernels import BITS, KINDS
from gradwatch.record.device.triton_plan import (
    BINS,
    COLUMNS,
    PROGRAMS,
    RECORD,
    ROWS,
    SPLITS,
    STEP_RECORD,
    TILE,
    Plan,
    StepPart,
    beside,
    measurement_of,
    planned,
    steps_beside,
    steps_of,
)
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import fixed_coordinates, is_dense, rows_lie_whole

OLDEST_TRITON = (3, 2)
"""Earlier ones cannot make a pointer of an address in a table."""
_BLOCK, _STRETCH, _COLUMNS_AT_ONCE = 128, 512, 128
_OUTPUT_PROGRAMS = 256
_PLANS = 16
"""Plans kept of one engine; there are more only where sizes change from step to step."""
_STEPS = ((True, True, False), (False, False, True), (True, False, True), (True, False, False))
"""Update, at coordinates, Adam's ratio."""
_VARIANTS = (
    (False, False, False),
    (False, True, False),
    (True, True, False),
    (True, False, True),
    (True, True, True),
)
"""Histograms, sketches, hashes: what is compiled. Others are the next larger of these."""


def takes(tensor: Tensor) -> bool:
    """Whether the kernels can read this tensor where it lies."""
    return tensor.dtype in KINDS and rows_lie_whole(tuple(tensor.shape), tensor.stride())


class TritonEngine(Engine):
    """Measures float32, bfloat16 and float16; leaves other tensors to `fallback`."""

    name: ClassVar[str] = "triton"

    def __init__(self, fallback: Engine, *, tile: int = TILE, programs: int = PROGRAMS) -> None:
        self._fallback = fallback
        self._tile = tile
        self._programs = programs
        self._plans: dict[tuple[Any, ...], tuple[Plan, Tensor]] = {}
        self._scratch: dict[str, Tensor] = {}
        self._kept_coordinates: dict[int, Tensor] = {}
        self._times: RowTimes | None = None
        """Of rows that nobody remembers: to count those that are zero."""

    # -- tensors -----------------------------------------------------------------------------------

    def measure(
        self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        """Moments of the tensors and what else is wanted, in one pass."""
        mine = [i for i, tensor in enumerate(tensors) if tensor is not None and takes(tensor)]
        taken = set(mine)
        others = [i for i, t in enumerate(tensors) if t is not None and i not in taken]
        times = wanted.rows
        now = 0 if times is None else times.now
        sent: Sent[DeviceMeasurement] | None = None
        if others or not mine:
            rest = [tensor if i not in taken else None for i, tensor in enumerate(tensors)]
            sent = self._fallback.measure(rest, places, wanted)
            if times is not None:
                times.now = now  # both of us count the same gradient
        if not mine and sent is not None:
            found = sent
        else:
            chosen = [tensor for i in mine if (tensor := tensors[i]) is not None]
            with _on(chosen[0].device):
                found = self._measure(mine, chosen, places, wanted)
        if times is not None:
            times.now = now + 1
        return found if sent is None or not mine else _both(found, sent, others)

    def _measure(
        self, mine: list[int], chosen: list[Tensor], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        device = chosen[0].device
        asked = (wanted.histograms, wanted.sketches, wanted.hashes)
        bins, sketches, hashes = next(
            variant for variant in _VARIANTS if all(map(ge, variant, asked))
        )
        keys = [(tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in chosen]
        plan, programs = self._planned([tensor.numel() for tensor in chosen], keys, device)
        room = self._room(plan, device)
        hold: list[Tensor] = []
        table, remembered = self._table(plan, mine, chosen, places, wanted, hold)
        lines = _sent(table, device)
        out = torch.empty(len(mine), RECORD, dtype=torch.float64, device=device)
        counters = room[1]  # anything of that type, where nothing is counted
        if bins:
            counters = torch.zeros(len(mine), BINS, dtype=torch.int32, device=device)
        for key, line, many, first, count in plan.classes:
            dtype, aligned = key
            kind = KINDS[dtype]
            _launch(
                triton_kernels.measure, (count,), lines, programs, *room[:4], counters, first,
                plan.tiles, DTYPE=kind, TILE=self._tile, SUB=min(_STRETCH, self._tile),
                ALIGNED=aligned, HISTOGRAM=bins, SKETCHED=sketches, HASHED=hashes,
            )  # fmt: skip
            if hashes:
                _launch(
                    triton_kernels.spread, (many, SPLITS), lines, room[4], line,
                    DTYPE=kind, ROWS=ROWS, COLS=_COLUMNS_AT_ONCE,
                )  # fmt: skip
        _launch(
            triton_kernels.merge, (len(mine),), lines, *room, out, plan.tiles, TILE=self._tile,
            BLOCK=_BLOCK, ROWS=ROWS, SKETCHED=sketches, HASHED=hashes,
        )  # fmt: skip
        indices = [mine[given] for given in plan.order]

        def finish(parts: Parts) -> DeviceMeasurement:
            return measurement_of(
                parts[0].reshape(-1, RECORD),
                parts[1] if wanted.histograms else None,
                indices,
                places.wholes,
                sketches=wanted.sketches,
                hashes=wanted.hashes,
                remembered=remembered,
            )

        return Sent([out, counters] if wanted.histograms else [out], finish)

    def _table(
        self,
        plan: Plan,
        mine: list[int],
        chosen: list[Tensor],
        places: Places,
        wanted: Wanted,
        hold: list[Tensor],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """The lines of all tensors, and whose rows are remembered (None: nobody's)."""
        indices = [mine[given] for given in plan.order]
        ordered = [chosen[given] for given in plan.order]
        table = np.zeros((len(mine), COLUMNS), np.int64)
        table[:, 0] = [tensor.data_ptr() for tensor in ordered]
        table[:, 1] = [tensor.numel() for tensor in ordered]
        table[:, 2] = plan.starts
        rows = np.array([t.shape[0] if t.dim() > 1 else 0 for t in ordered], np.int64)
        table[:, 3] = np.where(rows > 0, table[:, 1] // np.maximum(rows, 1), 0)
        known = np.zeros(len(mine), bool)
        remembered = None
        if wanted.rows is not None:
            known = wanted.rows.rows[indices] == rows
            starts = wanted.rows.last.data_ptr() + 4 * wanted.rows.starts[indices]
            table[:, 4], table[:, 5] = starts, wanted.rows.now
            remembered = np.zeros(len(places.seeds), bool)
            remembered[indices] = known
        if not known.all():
            own = self._own_times(int(rows.sum()), ordered[0].device)
            starts = own.last.data_ptr() + 4 * (np.cumsum(rows) - rows)
            table[~known, 4], table[~known, 5] = starts[~known], own.now
            own.now += 1
        table[:, 6] = places.seeds[indices].view(np.int64)
        table[:, 7], table[:, 8] = places.offsets[indices], places.wholes[indices]
        table[:, 9] = rows
        table[:, 10] = _address(wanted.factor, torch.float64, hold)
        table[:, 11] = _address(wanted.void, torch.float32, hold)
        return table, remembered

    def _own_times(self, rows: int, device: torch.device) -> RowTimes:
        if self._times is None or len(self._times.last) < rows:
            now = 0 if self._times is None else self._times.now
            self._times = RowTimes([rows], device)
            self._times.now = now
        return self._times

    def _planned(
        self, counts: list[int], keys: list[Any], device: torch.device
    ) -> tuple[Plan, Tensor]:
        key = (*counts, *keys)
        if key not in self._plans:
            if len(self._plans) == _PLANS:
                self._plans.clear()
            plan = planned(counts, keys, self._tile, self._programs)
            self._plans[key] = plan, _sent(plan.programs, device)
        return self._plans[key]

    def _room(self, plan: Plan, device: torch.device) -> list[Tensor]:
        """Memory for what programs leave behind: floats, ints, sketches, words, spreads."""
        for name, size in plan.scratch.items():
            if name not in self._scratch or self._scratch[name].nbytes < size:
                self._scratch[name] = torch.empty(size, dtype=torch.uint8, device=device)
        kinds = (torch.float32, torch.int32, torch.float32, torch.int64, torch.float64)
        return [
            self._scratch[name].view(kind) for name, kind in zip(plan.scratch, kinds, strict=True)
        ]

    # -- steps -------------------------------------------------------------------------------------

    def snapshot(self, tensors: Sequence[Tensor | None]) -> Snapshot:
        """Copy the weights: whole where all of them fit into MOST_MEMORY, else at 4,096 places."""
        whole = sum(tensor.nbytes for tensor in tensors if tensor is not None) <= MOST_MEMORY
        copies: list[Tensor | None] = [None] * len(tensors)
        mine = []
        for index, tensor in enumerate(tensors):
            if tensor is not None and takes(tensor):
                mine.append((index, tensor, tensor.numel() if whole else _places(tensor)))
            elif tensor is not None:
                flat = tensor.detach().reshape(-1)
                copies[index] = flat.clone() if whole else flat[self._coordinates(flat)]
        if mine:
            rooms = _rooms([tensor for _, tensor, _ in mine], [count for _, _, count in mine])
            jobs = [
                Job(index, count, room, tensor, picked=not whole)
                for (index, tensor, count), room in zip(mine, rooms, strict=True)
            ]
            with _on(jobs[0].after.device):
                self._copy(jobs)
            for job in jobs:
                copies[job.index] = job.before
        return Snapshot(copies, whole)

    def _copy(self, jobs: "list[Job]") -> None:
        device = jobs[0].after.device
        keys = [(job.after.itemsize, job.aligned, job.picked) for job in jobs]
        plan, programs = self._planned([job.count for job in jobs], keys, device)
        lines = _sent(self._step_table(plan, jobs, None, []), device)
        for key, _, _, first, count in plan.classes:
            size, aligned, picked = key
            _launch(
                triton_steps.copy, (count,), lines, programs, first, plan.tiles,
                WEIGHT=BITS[size], TILE=self._tile, ALIGNED=aligned, PICKED=picked,
            )  # fmt: skip

    def _coordinates(self, tensor: Tensor) -> Tensor:
        """Kept here too: a cache of them may forget some while a kernel reads them."""
        count = tensor.numel()
        if count not in self._kept_coordinates:
            self._kept_coordinates[count] = fixed_coordinates(count, SAMPLE, tensor.device)
        return self._kept_coordinates[count]

    def _step_table(
        self, plan: Plan, jobs: "list[Job]", divisors: DeviceDivisors | None, hold: list[Tensor]
    ) -> NDArray[np.int64]:
        ordered = [jobs[given] for given in plan.order]
        table = np.zeros((len(jobs), COLUMNS), np.int64)
        numbers = np.zeros((len(jobs), 3), np.float64)  # ε, 1 / correction, β
        for line, job in enumerate(ordered):
            # Without a gradient something is read in its place, and what comes of it left out.
            pulled = job.after if job.gradient is None else job.gradient
            four = (job.before, job.after, pulled, job.second)
            table[line, :4] = [0 if tensor is None else tensor.data_ptr() for tensor in four]
            if job.picked:
                table[line, 6] = self._coordinates(job.after).data_ptr()
            if job.second is not None and divisors is not None:
                steps, beta = divisors.steps[job.index], float(divisors.betas[job.index])
                numbers[line] = divisors.epsilons[job.index], 1.0, beta
                if isinstance(steps, Tensor):
                    table[line, 9] = _address(steps, torch.float32, hold)
                else:
                    with np.errstate(divide="ignore"):
                        numbers[line, 1] = np.float64(1.0) / (1.0 - beta**steps)
        table[:, 4] = [job.count for job in ordered]
        table[:, 5] = plan.starts
        table[:, [7, 8, 10]] = numbers.view(np.int64)
        return table

    def step(
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> Sent[DeviceSteps]:
        """What a step changed since `before`, and Adam's ratio; either may be missing."""
        jobs, others = _jobs(before, after, gradients, divisors)
        sent: list[Sent[DeviceSteps]] = []
        if jobs:
            with _on(jobs[0].after.device):
                sent.append(self._step(jobs, before is not None, divisors, len(after)))
        if others or not jobs:
            left = set(others)
            rest = [tensor if i in left else None for i, tensor in enumerate(after)]
            pulls = [tensor if i in left else None for i, tensor in enumerate(gradients)]
            sent.append(self._fallback.step(before, rest, pulls, divisors))
        return sent[0] if len(sent) == 1 else _both_steps(sent[0], sent[1], others)

    def _step(
        self, jobs: "list[Job]", updates: bool, divisors: DeviceDivisors | None, total: int
    ) -> Sent[DeviceSteps]:
        device = jobs[0].after.device
        hold: list[Tensor] = []
        counts, keys = [job.count for job in jobs], [job.key for job in jobs]
        plan, programs = self._planned(counts, keys, device)
        lines = _sent(self._step_table(plan, jobs, divisors, hold), device)
        floats, ints = self._room(plan, device)[:2]
        out = torch.empty(len(jobs), STEP_RECORD, dtype=torch.float64, device=device)
        for key, _, _, first, count in plan.classes:
            weight, gradient, second, aligned, update, picked, adam = key
            _launch(
                triton_steps.step, (count,), lines, programs, floats, ints, first, plan.tiles,
                WEIGHT=KINDS[weight], GRADIENT=KINDS[gradient], MOMENT=KINDS[second],
                BITS=BITS[weight.itemsize], TILE=self._tile, ALIGNED=aligned,
                UPDATE=update, PICKED=picked, ADAM=adam,
            )  # fmt: skip
        _launch(
            triton_steps.merge_step, (len(jobs),), lines, floats, ints, out, plan.tiles,
            TILE=self._tile, BLOCK=_BLOCK,
        )  # fmt: skip
        read = [jobs[given].part for given in plan.order]

        def finish(parts: Parts) -> DeviceSteps:
            numbers = parts[0].reshape(-1, STEP_RECORD)
            return steps_of(numbers, read, total, updates=updates, ratios=divisors is not None)

        return Sent([out], finish)

    # -- outputs -----------------------------------------------------------------------------------

    def output(self, tensor: Tensor) -> Tensor:
        """[k, 5]: of parts of a layer's output zeros, non-finite elements, and of the others the
        largest magnitude, the sum and the sum of squares; to be joined on the host."""
        if tensor.dtype not in KINDS or not is_dense(tuple(tensor.shape), tensor.stride()):
            return self._fallback.output(tensor)
        count, address = tensor.numel(), tensor.data_ptr()
        programs = min(-(-count // self._tile), _OUTPUT_PROGRAMS)
        out = torch.empty(programs, 5, dtype=torch.float64, device=tensor.device)
        with _on(tensor.device):
            _launch(
                triton_steps.look, (programs,), out, address, count, DTYPE=KINDS[tensor.dtype],
                TILE=self._tile, ALIGNED=address % 16 == 0,
            )  # fmt: skip
        return out


# -- one tensor of a step ------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What is to be found out about one tensor: its change, its ratio, or both at once."""

    index: int
    count: int
    before: Tensor | None
    after: Tensor
    gradient: Tensor | None = None
    second: Tensor | None = None
    picked: bool = False

    @property
    def aligned(self) -> bool:
        """Whether 16 bytes can be read at once, wherever neighbours are read."""
        neighbours = (self.before, self.after, self.gradient, self.second)
        some = neighbours[:1] if self.picked else neighbours
        return all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in some)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the kernel is compiled for."""
        gradient = self.after if self.gradient is None else self.gradient
        second = gradient if self.second is None else self.second
        kinds = (self.after.dtype, gradient.dtype, second.dtype)
        update = self.before is not None
        return *kinds, self.aligned, update, self.picked, self.second is not None

    @property
    def part(self) -> StepPart:
        """What is needed to read its numbers; no tensor."""
        update, pulled = self.before is not None, self.gradient is not None
        return StepPart(self.index, self.count, update, pulled, self.second is not None)


def _jobs(
    before: Snapshot | None,
    after: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    divisors: DeviceDivisors | None,
) -> tuple[list[Job], list[int]]:
    """What the kernels can do, and the tensors that are left to the other engine."""
    jobs: list[Job] = []
    others = []
    seconds = [None] * len(after) if divisors is None else divisors.seconds
    for index, (now, gradient, second) in enumerate(zip(after, gradients, seconds, strict=True)):
        if now is None:
            continue
        moment = None if gradient is None else second
        some = [tensor for tensor in (now, gradient, moment) if tensor is not None]
        alike = all(t.shape == now.shape and t.stride() == now.stride() for t in some)
        if not alike or not all(map(takes, some)):
            others.append(index)
            continue
        old = None if before is None else before.copies[index]
        picked = before is not None and not before.whole
        count = _places(now) if picked else now.numel()
        if old is not None and (old.numel() != count or old.dtype is not now.dtype):
            old = None
        if old is not None and (picked or moment is None):
            jobs.append(Job(index, count, old, now, gradient, None, picked))
            old = None
        if moment is not None:
            jobs.append(Job(index, now.numel(), old, now, gradient, moment))
    return jobs, others


def _places(tensor: Tensor) -> int:
    return min(tensor.numel(), SAMPLE)


def _rooms(tensors: list[Tensor], counts: list[int]) -> list[Tensor]:
    """Memory for a copy of so many elements of each, one stretch for all of a type."""
    rooms: list[Tensor] = [tensors[0]] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        some = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
        ends = np.cumsum([-(-counts[i] // 8) * 8 for i in some])  # 16 bytes of any type
        flat = torch.empty(int(ends[-1]), dtype=dtype, device=tensors[0].device)
        for i, end in zip(some, ends.tolist(), strict=True):
            begin = end - -(-counts[i] // 8) * 8
            rooms[i] = flat[begin : begin + counts[i]]
    return rooms


# -- the device ----------------------------------------------------------------------------------


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _sent(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """An array on its way to the device; nobody waits for it."""
    host = torch.from_numpy(numbers)
    # Pinned memory comes from torch's cache, which gives it to nobody before the copy is done.
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def _address(number: Tensor | None, dtype: torch.dtype, hold: list[Tensor]) -> int:
    """Where one number lies on the device; `hold` what is made for it until the launches are."""
    if number is None:
        return 0
    hold.append(number.detach().reshape(-1)[:1].to(dtype))
    return hold[-1].data_ptr()


def options(kernel: Any, *, nvidia: bool = torch.version.cuda is not None) -> dict[str, Any]:
    """How a kernel is compiled; the same in the thread that compiles and where it is launched."""
    many = kernel in (triton_kernels.measure, triton_steps.step)
    chosen: dict[str, Any] = {"num_warps": 8 if many else 4, "enable_fp_fusion": True}
    if nvidia:
        chosen["maxnreg"] = 128
    return chosen


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    kernel[grid](*arguments, **constants, **options(kernel))


class Variant(NamedTuple):
    """A kernel to be compiled: the types of its arguments and its constants."""

    kernel: Any
    arguments: tuple[Any, ...]
    """Types of torch for addresses, a number for a number."""
    constants: dict[str, Any]


def variants(dtypes: Sequence[torch.dtype], tile: int = TILE) -> Iterator[Variant]:
    """All that training in these types needs, what is needed first first."""
    partials = (torch.float32, torch.int32, torch.float32, torch.int64)
    tables = (torch.int64, torch.int32)
    sub = min(_STRETCH, tile)
    for aligned in (True, False):
        for bins, sketches, hashes in _VARIANTS[:4]:
            flags = {"SKETCHED": sketches, "HASHED": hashes}
            for dtype in dtypes:
                yield Variant(
                    triton_kernels.measure, (*tables, *partials, torch.int32, 0, 1),
                    {"DTYPE": KINDS[dtype], "TILE": tile, "SUB": sub, "ALIGNED": aligned,
                     "HISTOGRAM": bins, **flags},
                )  # fmt: skip
            if aligned:
                arguments = (torch.int64, *partials, torch.float64, torch.float64, 1)
                constants = {"TILE": tile, "BLOCK": _BLOCK, "ROWS": ROWS, **flags}
                yield Variant(triton_kernels.merge, arguments, constants)
        for dtype in dtypes:
            yield from _step_variants(dtype, aligned, tile)


def _step_variants(dtype: torch.dtype, aligned: bool, tile: int) -> Iterator[Variant]:
    kind, tables = KINDS[dtype], (torch.int64, torch.int32)
    if aligned:
        constants = {"DTYPE": kind, "ROWS": ROWS, "COLS": _COLUMNS_AT_ONCE}
        yield Variant(triton_kernels.spread, (torch.int64, torch.float64, 0), constants)
        arguments = (torch.int64, torch.float32, torch.int32, torch.float64, 1)
        yield Variant(triton_steps.merge_step, arguments, {"TILE": tile, "BLOCK": _BLOCK})
    for update, picked, adam in _STEPS:
        constants = {"WEIGHT": kind, "GRADIENT": kind, "MOMENT": kind,
                     "BITS": BITS[dtype.itemsize], "TILE": tile, "ALIGNED": aligned,
                     "UPDATE": update, "PICKED": picked, "ADAM": adam}  # fmt: skip
        partials = (torch.float32, torch.int32)
        yield Variant(triton_steps.step, (*tables, *partials, 0, 1), constants)
    for picked in (False, True):
        constants = {"WEIGHT": BITS[dtype.itemsize], "TILE": tile, "ALIGNED": aligned,
                     "PICKED": picked}  # fmt: skip
        yield Variant(triton_steps.copy, (*tables, 0, 1), constants)
    constants = {"DTYPE": kind, "TILE": tile, "ALIGNED": aligned}
    yield Variant(triton_steps.look, (torch.float64, 1 << 40, 1), constants)


def warm_up(device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
    """Compile all kernels for this device; may run in a thread while something else measures."""
    with _on(device):
        for kernel, arguments, constants in variants(dtypes):
            kernel.warmup(*arguments, grid=(1,), **constants, **options(kernel))


# -- two engines side by side ----------------------------------------------------------------------


def _both(
    mine: Sent[DeviceMeasurement], other: Sent[DeviceMeasurement], others: list[int]
) -> Sent[DeviceMeasurement]:
    count = len(mine.parts)

    def finish(parts: Parts) -> DeviceMeasurement:
        return beside(mine.finish(parts[:count]), other.finish(parts[count:]), others)

    return Sent([*mine.parts, *other.parts], finish)


def _both_steps(
    mine: Sent[DeviceSteps], other: Sent[DeviceSteps], others: list[int]
) -> Sent[DeviceSteps]:
    count = len(mine.parts)

    def finish(parts: Parts) -> DeviceSteps:
        return steps_beside(mine.finish(parts[:count]), other.finish(parts[count:]), others)

    return Sent([*mine.parts, *other.parts], finish)
