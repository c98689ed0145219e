"""A run folder of a million steps as a writer with retention leaves it, made in about a minute.

Nobody can wait for a million real steps, so the buckets of the rollups are drawn instead of
rolled up from rows; everything else is the store's: its records, its encoders, its `combine`, and
chunks of the size that journals of 16 MB give. What retention would have deleted is never made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store.column_format import STATE, ChunkHead, ColumnPart
from gradwatch.store.format import SCALAR_ROW, Head, Type, pack, pack_event, pack_names, to_json
from gradwatch.store.journal import Journal
from gradwatch.store.rollups import (
    FACTOR,
    VALUED,
    BucketTable,
    Retention,
    Rollup,
    RollupWriter,
    combine,
    enough,
)
from gradwatch.store.runs import make_writer_folder, write_run_json
from gradwatch.store.sealer import Sealer
from gradwatch.store.writer_thread import SEAL_BYTES

CADENCE = {Family.GRAD: 1, Family.UPDATE: 4, Family.WEIGHT: 16, Family.ACT: 16, Family.GROUP: 1}
"""Families made and how often each is sampled; probes and the optimizer's state are left away."""
SCALARS = ("loss", "step_seconds", "clip_factor")
SCALAR_STEPS = 64
"""A writer flushes after so many steps."""


@dataclass(frozen=True)
class Spike:
    """One step on which one tensor's gradient is far larger than ever else."""

    step: int
    tensor: int
    value: float


@dataclass(frozen=True)
class _Rows:
    """What the sealer wants to know of a journal's chunk."""

    family: Family
    steps: NDArray[np.int64]
    seqs: NDArray[np.uint64]
    ids: NDArray[np.uint32]


@dataclass
class LongFolder:
    """Makes the folder; `make` returns when it is whole."""

    path: Path
    steps: int
    tensors: int
    spikes: Sequence[Spike] = ()
    keep: Retention = field(default_factory=Retention)
    cadence: Mapping[Family, int] = field(default_factory=lambda: CADENCE)
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.folder = make_writer_folder(self.path, 0, 0)
        write_run_json(self.path, self.path.name, {"torch": "none"})
        self.subjects = _subjects(self.tensors)
        self.rollups = RollupWriter(self.folder, lambda: None)
        row_bytes = sum(
            row_dtype(family).itemsize * len(self._ids(family)) / every
            for family, every in self.cadence.items()
        )
        self.sealed_steps = max(16, int(SEAL_BYTES / row_bytes))

    def make(self) -> None:
        before = self._side()
        for family, every in self.cadence.items():
            self._coarse(family, every, before)
        self.rollups.close()
        self._raw(before)

    # -- rows of the rollups ---------------------------------------------------------------------

    def _coarse(self, family: Family, every: int, before: int) -> None:
        """Whole thousands of rows; drawn by hundreds, and by tens where tens are still kept."""
        ids = self._ids(family)
        thousand = FACTOR**3 * every
        for begin in range(0, self.steps // thousand * thousand, thousand):
            age = self.steps - begin
            finest = 1 if age <= self.keep.tens + thousand else 2
            steps = np.arange(begin, begin + thousand, every)
            rollup = self._drawn(family, ids, steps, self._seqs(family, steps, before), finest)
            for level in range(finest, 4):
                old = level == 2 and age > self.keep.hundreds + thousand
                if not old:
                    self._append(family, level, rollup)
                if level < 3:
                    rollup, _ = combine(rollup, lambda: None)

    def _append(self, family: Family, level: int, rollup: Rollup) -> None:
        """As the writer does it: journal after journal, each adding the buckets it makes whole."""
        rows = self.sealed_steps / self.cadence[family] / FACTOR**level
        size = max(1, round(rows))
        count = len(rollup.head.sizes)
        writer, key = self.rollups, (family, rollup.head.ids.tobytes(), level)
        for at in range(0, count, size):
            part = rollup.slice(at, min(at + size, count))
            whole = writer.held.pop(key).joined(part) if key in writer.held else part
            if enough(whole):
                writer.write([(key, whole)])
            else:
                writer.held[key] = whole

    def _drawn(
        self,
        family: Family,
        ids: NDArray[np.uint32],
        steps: NDArray[np.int64],
        seqs: NDArray[np.uint64],
        level: int,
    ) -> Rollup:
        each = FACTOR**level
        shape = (len(steps) // each, len(ids))
        sizes = np.full(shape[0], each, np.uint32)
        table: BucketTable = {
            (STATE, ColumnPart.VALUE): np.zeros(shape, np.uint8),
            (VALUED, ColumnPart.VALUE): np.zeros(shape, np.uint8),
        }
        for name in row_dtype(family).names or ():
            if Stat(name).width == 1:
                self._draw(table, name, shape, each)
        for spike in self.spikes if family is Family.GRAD else ():
            if steps[0] <= spike.step <= steps[-1]:
                row, at = divmod(spike.step - int(steps[0]), each)
                table[Stat.GRAD_NORM, ColumnPart.HIGH][row, spike.tensor] = spike.value
                table[Stat.GRAD_NORM, ColumnPart.HIGH_AT][row, spike.tensor] = at
        return Rollup(ChunkHead(steps, seqs, ids, sizes), table)

    def _draw(self, table: BucketTable, name: str, shape: tuple[int, int], each: int) -> None:
        last = self._values(name, shape)
        table[name, ColumnPart.LAST] = last
        if name == "weight_hash":
            return
        whole = last.dtype.kind == "u"
        middle = last if whole else last.astype(np.float64)
        span = 0 * middle if whole else 0.1 * np.abs(middle) * self.rng.random(shape)
        table[name, ColumnPart.LOW], table[name, ColumnPart.HIGH] = middle - span, middle + span
        table[name, ColumnPart.COUNT] = np.full(shape, each, np.uint16)
        for part in (ColumnPart.LOW_AT, ColumnPart.HIGH_AT):
            table[name, part] = self.rng.integers(0, each, shape, dtype=np.uint16)

    def _values(self, name: str, shape: tuple[int, int]) -> NDArray[Any]:
        stat = Stat(name)
        if stat.dtype.endswith("u8"):
            counted = name.endswith("_count")
            return np.full(shape, 65536 if counted else 0, np.uint64)
        if stat.unit == "fraction":
            return (0.2 * self.rng.random(shape)).astype(stat.dtype)
        usual = 1e-2 * (1 + np.arange(shape[1]) % 7)
        return (usual * np.exp(0.2 * self.rng.standard_normal(shape))).astype(stat.dtype)

    # -- the newest rows, in full ----------------------------------------------------------------

    def _raw(self, before: int) -> None:
        sealer = Sealer(self.folder, None, lambda: None)
        size = -(-self.sealed_steps // 16) * 16
        first = max(0, (self.steps - self.keep.raw) // size)
        for number in range(first, -(-self.steps // size)):
            steps = np.arange(number * size, min((number + 1) * size, self.steps))
            tables = []
            for family, every in self.cadence.items():
                own = steps[steps % every == 0]
                if len(own):
                    chunk = _Rows(family, own, self._seqs(family, own, before), self._ids(family))
                    rows = self._rows(family, own, chunk.ids)
                    tables.append((chunk, rows, np.zeros(rows.shape, np.uint8)))
            sealer.write_columns(number + 1, tables, [])  # type: ignore[arg-type]
        sealer.close()

    def _rows(
        self, family: Family, steps: NDArray[np.int64], ids: NDArray[np.uint32]
    ) -> NDArray[np.void]:
        rows = np.zeros((len(steps), len(ids)), row_dtype(family))
        for name in rows.dtype.names or ():
            if Stat(name).width == 1:
                rows[name] = self._values(name, rows.shape)
        for spike in self.spikes if family is Family.GRAD else ():
            if steps[0] <= spike.step <= steps[-1]:
                rows[Stat.GRAD_NORM][spike.step - steps[0], spike.tensor] = spike.value
        return rows

    # -- everything that is no row ---------------------------------------------------------------

    def _side(self) -> int:
        """Subjects, graph, scalars, what retention said, the end; the next free sequence number."""
        number = 0
        files = 1
        out = Journal(self.folder / "x00001.gwx")
        for type_, step, body in self._small():
            record = pack(Head(type_, 0, 0, 0, number, step, len(body), 0), body)
            if out.size > 8 << 20:
                out.close()
                files += 1
                out = Journal(self.folder / f"x{files:05d}.gwx")
            out.append(record)
            number += 1
        out.close()
        return number

    def _small(self) -> Iterator[tuple[Type, int, bytes]]:
        numbered = [[i, subject.to_dict()] for i, subject in enumerate(self.subjects)]
        yield Type.SUBJECTS, 0, to_json(numbered)
        layers = list(dict.fromkeys(s.layer for s in self.subjects if s.kind is Kind.PARAMETER))
        yield Type.GRAPH, 0, to_json(Graph.chain(layers).to_dict())
        for first in range(0, self.steps, SCALAR_STEPS):
            yield Type.SCALARS, first, self._scalars(first)
        text = "1 files of older rows are deleted; coarser levels cover them."
        for step in range(0, max(0, self.steps - self.keep.raw), self.sealed_steps):
            event = Event(step, EventKind.RETENTION, text, data={"seqs": [[step, step]]})
            yield Type.EVENT, step, pack_event(event)
        yield Type.NOTE, self.steps, to_json({"optimizer": "AdamW"})
        yield Type.CLOSE, self.steps, to_json({"flushed": 0, "dropped": 0})

    def _scalars(self, first: int) -> bytes:
        steps = np.arange(first, min(first + SCALAR_STEPS, self.steps))
        rows = np.zeros(len(steps) * len(SCALARS), SCALAR_ROW)
        rows["step"] = np.repeat(steps, len(SCALARS))
        rows["name"] = np.tile(np.arange(len(SCALARS)), len(steps))
        rows["value"] = 2 * np.exp(-np.repeat(steps, len(SCALARS)) / self.steps)
        rows["value"] *= 1 + 0.1 * self.rng.random(len(rows))
        return pack_names(SCALARS) + rows.tobytes()

    def _ids(self, family: Family) -> NDArray[np.uint32]:
        found = [i for i, subject in enumerate(self.subjects) if subject.kind is family.kind]
        return np.array(found, np.uint32)

    def _seqs(self, family: Family, steps: NDArray[np.int64], before: int) -> NDArray[np.uint64]:
        """Step after step, in each the families that are due."""
        order = list(self.cadence)
        found = np.full(len(steps), before, np.int64)
        for other, every in self.cadence.items():
            found += -(-steps // every)  # how often before this step
            if order.index(other) < order.index(family):
                found += steps % every == 0
        return found.astype(np.uint64)


def _subjects(tensors: int) -> list[Subject]:
    """Weights and biases of linear layers, their outputs, and one group of the optimizer."""
    found = []
    for number in range(tensors):
        layer = f"h.{number // 8}.part{number // 2 % 4}"
        name = f"{layer}.{'weight' if number % 2 == 0 else 'bias'}"
        shape = (256, 256) if number % 2 == 0 else (256,)
        count = int(np.prod(shape))
        made = Subject(Kind.PARAMETER, name, layer, shape, "float32", count, 0, order=number // 2)
        found.append(made)
    for number in range(0, tensors, 2):
        layer = f"h.{number // 8}.part{number // 2 % 4}"
        found.append(Subject(Kind.LAYER, layer, layer, order=number // 2, module="Linear"))
    return [*found, Subject(Kind.GROUP, "0")]
