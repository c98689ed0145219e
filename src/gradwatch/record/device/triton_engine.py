"""The engine that measures with Triton: all tensors of a type in one launch, one read of each.

Sizes are planned once and kept, with the memory that programs leave their partial results in; a
step only sends a small table of addresses. Triton comes with torch on Linux and is no dependency:
nobody imports this module before the engine is asked for.
"""

from collections.abc import Callable, Sequence
from operator import ge
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.backend_cpu import SAMPLE, pick
from gradwatch.record.device import triton_kernels, triton_merge, triton_steps
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
from gradwatch.record.device.slabs import flat
from gradwatch.record.device.torch_engine import TorchEngine
from gradwatch.record.device.triton_jobs import Job, jobs_of, rooms, sampled, step_table, takes
from gradwatch.record.device.triton_kernels import BITS, KINDS
from gradwatch.record.device.triton_launch import (
    Launch,
    address_of,
    compile_only,
    launch,
    on_device,
    put,
)
from gradwatch.record.device.triton_plan import (
    BINS,
    COLUMNS,
    PROGRAMS,
    RECORD,
    ROWS,
    SPLITS,
    STEP_RECORD,
    TILE,
    LaunchPlan,
    beside,
    measurement_of,
    planned,
    steps_beside,
    steps_of,
)
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import fixed_coordinates, is_dense

_Result = TypeVar("_Result")
_BLOCK, _STRETCH, _COLUMNS_AT_ONCE = 128, 512, 32
_OUTPUT_PROGRAMS = 256
_PLANS = 16
"""Plans kept of one engine; there are more only where sizes change from step to step."""
_VARIANTS = (
    (False, False, False),
    (False, True, False),
    (True, True, False),
    (True, False, True),
    (True, True, True),
)
"""Histograms, sketches, hashes: what is compiled. Others are the next larger of these."""


class TritonEngine(Engine):
    """Measures float32, bfloat16 and float16; leaves other tensors to `fallback`."""

    name: ClassVar[str] = "triton"

    def __init__(
        self,
        fallback: Engine,
        *,
        tile: int = TILE,
        programs: int = PROGRAMS,
        launch: Launch = launch,
    ) -> None:
        self._fallback = fallback
        self._launch = launch
        self._tile = tile
        self._programs = programs
        self._plans: dict[tuple[Any, ...], tuple[LaunchPlan, Tensor]] = {}
        self._scratch: dict[str, Tensor] = {}
        self._kept_coordinates: dict[int, Tensor] = {}
        self._times: RowTimes | None = None
        """Of rows that nobody remembers: to count those that are zero."""

    # -- tensors -----------------------------------------------------------------------------------

    def measure(
        self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        """Moments of the tensors and what else is wanted, in one pass."""
        there = [i for i, tensor in enumerate(tensors) if tensor is not None]
        mine = [i for i in there if (tensor := tensors[i]) is not None and takes(tensor)]
        others = sorted(set(there) - set(mine))
        times, sent = wanted.rows, []
        now = 0 if times is None else times.now
        if mine:
            chosen = [tensor for i in mine if (tensor := tensors[i]) is not None]
            with on_device(chosen[0].device):
                sent.append(self._measure(mine, chosen, places, wanted))
        if others or not mine:
            rest = [tensor if i in others else None for i, tensor in enumerate(tensors)]
            sent.append(self._fallback.measure(rest, places, wanted))
        if times is not None:
            times.now = now + 1  # both of us count the same gradient
        return _joined(sent, others, beside)

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
        lines = put(table, device)
        out = torch.empty(len(mine), RECORD, dtype=torch.float64, device=device)
        counters = room[1]  # anything of that type, where nothing is counted
        if bins:
            counters = torch.zeros(len(mine), BINS, dtype=torch.int32, device=device)
        for key, line, many, first, count in plan.classes:
            dtype, aligned = key
            kind = KINDS[dtype]
            self._launch(
                triton_kernels.measure, (count,), lines, programs, *room[:4], counters, first,
                plan.tiles, DTYPE=kind, TILE=self._tile, SUB=min(_STRETCH, self._tile),
                ALIGNED=aligned, HISTOGRAM=bins, SKETCHED=sketches, HASHED=hashes,
            )  # fmt: skip
            if hashes:
                self._launch(
                    triton_merge.spread, (many, SPLITS), lines, room[4], line,
                    DTYPE=kind, ROWS=ROWS, COLS=_COLUMNS_AT_ONCE,
                )  # fmt: skip
        self._launch(
            triton_merge.merge, (len(mine),), lines, *room, out, plan.tiles, TILE=self._tile,
            BLOCK=_BLOCK, ROWS=ROWS, SKETCHED=sketches, HASHED=hashes,
        )  # fmt: skip
        indices = [mine[given] for given in plan.order]

        def finish(parts: Parts) -> DeviceMeasurement:
            return measurement_of(
                parts[0].reshape(-1, RECORD),
                parts[1] if asked[0] else None,
                indices,
                places.wholes,
                sketches=asked[1],
                hashes=asked[2],
                remembered=remembered,
            )

        return Sent([out, counters] if asked[0] else [out], finish)

    def _table(
        self,
        plan: LaunchPlan,
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
        table[:, 10] = address_of(wanted.factor, torch.float64, hold)
        table[:, 11] = address_of(wanted.void, torch.float32, hold)
        return table, remembered

    def _own_times(self, rows: int, device: torch.device) -> RowTimes:
        if self._times is None or len(self._times.last) < rows:
            now = 0 if self._times is None else self._times.now
            self._times = RowTimes([rows], device)
            self._times.now = now
        return self._times

    def _planned(
        self, counts: list[int], keys: list[Any], device: torch.device
    ) -> tuple[LaunchPlan, Tensor]:
        key = (*counts, *keys)
        if key not in self._plans:
            if len(self._plans) == _PLANS:
                self._plans.clear()
            plan = planned(counts, keys, self._tile, self._programs)
            self._plans[key] = plan, put(plan.programs, device)
        return self._plans[key]

    def _room(self, plan: LaunchPlan, device: torch.device) -> list[Tensor]:
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
        return self.copy(tensors, whole=whole)

    def copy(self, tensors: Sequence[Tensor | None], *, whole: bool) -> Snapshot:
        """Copy the weights, in memory that is given back when the copies are."""
        copies: list[Tensor | None] = [None] * len(tensors)
        mine = []
        for index, tensor in enumerate(tensors):
            if tensor is not None and takes(tensor):
                mine.append((index, tensor, tensor.numel() if whole else sampled(tensor)))
            elif tensor is not None:
                # As the other engine takes them: it compares them later.
                copies[index] = flat(tensor).clone() if whole else pick(tensor).reshape(-1)
        if mine:
            free = rooms([tensor for _, tensor, _ in mine], [count for _, _, count in mine])
            jobs = [
                Job(index, count, room, tensor, picked=not whole)
                for (index, tensor, count), room in zip(mine, free, strict=True)
            ]
            with on_device(jobs[0].after.device):
                self._copy(jobs)
            for job in jobs:
                copies[job.index] = job.before
        return Snapshot(copies, whole)

    def _copy(self, jobs: list[Job]) -> None:
        device = jobs[0].after.device
        keys = [(job.after.itemsize, job.aligned, job.picked) for job in jobs]
        plan, programs = self._planned([job.count for job in jobs], keys, device)
        lines = put(step_table(plan, jobs, None, self._coordinates, []), device)
        for key, _, _, first, count in plan.classes:
            size, aligned, picked = key
            self._launch(
                triton_steps.copy, (count,), lines, programs, first, plan.tiles,
                WEIGHT=BITS[size], TILE=self._tile, ALIGNED=aligned, PICKED=picked,
            )  # fmt: skip

    def _coordinates(self, tensor: Tensor) -> Tensor:
        """Kept here too: a cache of them may forget some while a kernel reads them."""
        count = tensor.numel()
        if count not in self._kept_coordinates:
            self._kept_coordinates[count] = fixed_coordinates(count, SAMPLE, tensor.device)
        return self._kept_coordinates[count]

    def step(
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> Sent[DeviceSteps]:
        """What a step changed since `before`, and Adam's ratio; either may be missing."""
        jobs, others = jobs_of(before, after, gradients, divisors)
        sent: list[Sent[DeviceSteps]] = []
        if jobs:
            with on_device(jobs[0].after.device):
                sent.append(self._step(jobs, before is not None, divisors, len(after)))
        if others or not jobs:
            left = set(others)
            rest = [tensor if i in left else None for i, tensor in enumerate(after)]
            pulls = [tensor if i in left else None for i, tensor in enumerate(gradients)]
            sent.append(self._fallback.step(before, rest, pulls, divisors))
        return _joined(sent, others, steps_beside)

    def _step(
        self, jobs: list[Job], updates: bool, divisors: DeviceDivisors | None, total: int
    ) -> Sent[DeviceSteps]:
        device = jobs[0].after.device
        hold: list[Tensor] = []
        counts, keys = [job.count for job in jobs], [job.key for job in jobs]
        plan, programs = self._planned(counts, keys, device)
        lines = put(step_table(plan, jobs, divisors, self._coordinates, hold), device)
        floats, ints = self._room(plan, device)[:2]
        out = torch.empty(len(jobs), STEP_RECORD, dtype=torch.float64, device=device)
        for key, _, _, first, count in plan.classes:
            weight, gradient, second, aligned, update, picked, adam = key
            self._launch(
                triton_steps.step, (count,), lines, programs, floats, ints, first, plan.tiles,
                WEIGHT=KINDS[weight], GRADIENT=KINDS[gradient], MOMENT=KINDS[second],
                BITS=BITS[weight.itemsize], TILE=self._tile, ALIGNED=aligned,
                UPDATE=update, PICKED=picked, ADAM=adam,
            )  # fmt: skip
        self._launch(
            triton_steps.merge_step, (len(jobs),), lines, floats, ints, out, plan.tiles,
            TILE=self._tile, BLOCK=_BLOCK,
        )  # fmt: skip
        read = [jobs[given].part for given in plan.order]
        ratios = divisors is not None  # what waits for the numbers holds no tensor

        def finish(parts: Parts) -> DeviceSteps:
            numbers = parts[0].reshape(-1, STEP_RECORD)
            return steps_of(numbers, read, total, updates=updates, ratios=ratios)

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
        with on_device(tensor.device):
            self._launch(
                triton_steps.look, (programs,), out, address, count, DTYPE=KINDS[tensor.dtype],
                TILE=self._tile, ALIGNED=address % 16 == 0,
            )  # fmt: skip
        return out


def _joined(
    sent: Sequence[Sent[_Result]],
    others: Sequence[int],
    beside: Callable[[_Result, _Result, Sequence[int]], _Result],
) -> Sent[_Result]:
    """What we have sent and what the other engine has, as one."""
    if len(sent) == 1:
        return sent[0]
    mine, other = sent
    count = len(mine.parts)

    def finish(parts: Parts) -> _Result:
        return beside(mine.finish(parts[:count]), other.finish(parts[count:]), others)

    return Sent([*mine.parts, *other.parts], finish)


# -- compiling -------------------------------------------------------------------------------------


def rehearse(launch: Launch, dtypes: Sequence[torch.dtype]) -> None:
    """Go through all that training in these types needs, on tiny tensors, with this `launch`."""
    one = np.ones(1)
    nowhere = Places(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.full(1, 8))
    for begin in (0, 1):  # with and without alignment; the one that nearly everybody needs first
        for dtype in dtypes:
            engine = TritonEngine(TorchEngine(torch.device("cpu")), launch=launch)
            some = [torch.zeros(9, dtype=dtype)[begin : begin + 8].view(2, 4)]
            for bins, sketches, hashes in _VARIANTS[:4]:
                engine.measure(some, nowhere, Wanted(bins, sketches, hashes))
            divisors = DeviceDivisors(some, [1.0], one / 2, one)
            for before in (engine.copy(some, whole=False), engine.copy(some, whole=True)):
                engine.step(before, some, some, divisors)
                engine.step(before, some, some, None)
            engine.step(None, some, some, divisors)
            engine.output(some[0])


def warm_up(device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
    """Compile all kernels for this device; may run in a thread while another engine measures."""
    with on_device(device):
        rehearse(compile_only, dtypes)
