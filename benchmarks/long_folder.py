"""A run folder of a million steps as a writer leaves it, made in a minute or two.

Nobody can wait for a million real steps. Of the newest steps and around the spikes there is
everything a writer makes: rows and rollups of all levels. Of the rest only the two coarser levels
are made, from numbers drawn at random; a real folder has the finest, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run import Subject
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store import manifest as manifests
from gradwatch.store.chunks import narrowed
from gradwatch.store.format import Head, Type, pack, to_json
from gradwatch.store.journal import Journal
from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import Grid, RandomAccess, Words, encoded
from gradwatch.store.places import Place
from gradwatch.store.rollups import LAST_ONLY, SIZES, merged, sealed
from gradwatch.store.runs import make_writer_folder, write_run_json
from gradwatch.store.sealer import FullJournal, Sealer

CADENCE = {Family.GRAD: 1, Family.UPDATE: 4, Family.WEIGHT: 16, Family.ACT: 16, Family.GROUP: 1}
"""Families made and how often each is sampled; probes and the optimizer's state are left away."""
SCALARS = ("loss", "step_seconds", "clip_factor")
JOURNAL_ROWS = 80_000
"""Rows of a family after which a writer seals."""
TOGETHER = 100
"""Journals that make up one file of the coarsest level."""


@dataclass(frozen=True)
class Spike:
    """One step on which one tensor's gradient is far larger than ever else."""

    step: int
    tensor: int
    value: float


@dataclass
class LongFolder:
    """Makes the folder; `make` returns when it is whole."""

    path: Path
    steps: int
    tensors: int
    spikes: Sequence[Spike] = ()
    rows: int = 10_000
    """So many of the newest steps have full rows."""
    cadence: Mapping[Family, int] = field(default_factory=lambda: CADENCE)
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.folder = make_writer_folder(self.path, 0, 0)
        write_run_json(self.path, self.path.name, {"torch": "none"})
        self.subjects = _subjects(self.tensors)
        self.files: list[SealedFile] = []
        # A whole number of the slowest family's samples, so that every journal begins with one.
        self.journal = max(16, JOURNAL_ROWS // self.tensors // 16 * 16)
        self._drawn: dict[str, NDArray[Any]] = {}

    def make(self) -> None:
        count = -(-self.steps // self.journal)
        for begin in range(0, count, TOGETHER):
            numbers = range(begin + 1, min(begin + TOGETHER, count) + 1)
            for family, every in self.cadence.items():
                if self._whole(numbers):
                    self._everything(family, every, numbers)
                    continue
                for size, together in zip(SIZES[1:], (10, TOGETHER), strict=True):
                    for first in range(begin, numbers[-1], together):
                        self._coarse(family, every, range(first + 1, first + together + 1), size)
            for number in numbers:
                self._put(*self._scalars(number))
        self._publish(count)

    def _whole(self, numbers: range) -> bool:
        """Whether everything is made of these journals."""
        first, end = (numbers[0] - 1) * self.journal, numbers[-1] * self.journal
        return end > self.steps - self.rows or any(first <= s.step < end for s in self.spikes)

    # -- as a writer makes them --------------------------------------------------------------------

    def _everything(self, family: Family, every: int, numbers: range) -> None:
        ids = self._ids(family)
        fine: list[SealedFile] = []
        for number in numbers:
            end = min(number * self.journal, self.steps)
            steps = np.arange((number - 1) * self.journal, end, every)
            rows = self._rows(family, steps, len(ids))
            states = np.zeros(rows.shape, np.uint8)
            grid = Grid(steps, ids)
            file = f"rollups/{family}-10/{number:05d}.parquet"
            fine.append(self._put(*sealed(file, [(grid, rows, states)], 0, 0)))
            if end > self.steps - self.rows:
                self._put(*_row_file(family, number, grid, rows))
        for size in SIZES[1:]:
            coarse = []
            for at in range(0, len(fine), 10):
                sources = [(self._open(entry), entry) for entry in fine[at : at + 10]]
                file = f"rollups/{family}-{size}/{sources[-1][1].number:05d}.parquet"
                coarse.append(self._put(*merged(file, sources, size)))
            fine = coarse

    def _rows(self, family: Family, steps: NDArray[np.int64], width: int) -> NDArray[np.void]:
        rows = np.zeros((len(steps), width), row_dtype(family))
        for name in rows.dtype.names or ():
            if Stat(name).width == 1:
                rows[name] = self._values(name, rows.shape)
        for spike in self.spikes if family is Family.GRAD else ():
            if steps[0] <= spike.step <= steps[-1]:
                rows[Stat.GRAD_NORM][spike.step - steps[0], spike.tensor] = spike.value
        return rows

    def _values(self, name: str, shape: tuple[int, int]) -> NDArray[Any]:
        """Drawn once and given again: drawing takes longer than all else."""
        held = self._drawn.get(name)
        if held is None or held.shape[0] < shape[0]:
            held = self._drawn[name] = self._draw(Stat(name), shape)
        return held[: shape[0]]

    def _draw(self, stat: Stat, shape: tuple[int, int]) -> NDArray[Any]:
        if stat.dtype.endswith("u8"):
            return np.full(shape, 65536 if stat.endswith("_count") else 0, np.uint64)
        if stat.unit == "fraction":
            return (0.2 * self.rng.random(shape)).astype(stat.dtype)
        usual = 1e-2 * (1 + np.arange(shape[1]) % 7)
        return (usual * np.exp(0.2 * self.rng.standard_normal(shape))).astype(stat.dtype)

    # -- the coarser levels, drawn -----------------------------------------------------------------

    def _coarse(self, family: Family, every: int, numbers: range, size: int) -> None:
        ids, number = self._ids(family), numbers[-1]
        steps = np.arange((numbers[0] - 1) * self.journal, number * self.journal, every)
        starts = np.arange(0, len(steps), size)
        ends = np.minimum(starts + size, len(steps))
        shape = (len(starts), len(ids))

        def table(values: NDArray[Any]) -> NDArray[Any]:
            return np.repeat(values, len(ids))

        whole = np.zeros(starts.size * len(ids), np.int32)
        columns: dict[str, NDArray[Any]] = {
            "first_step": table(steps[starts]),
            "last_step": table(steps[ends - 1]),
            "rows": table((ends - starts).astype(np.uint16)),
            "subject": np.tile(ids, len(starts)),
            "state": whole.astype(np.uint8),
            "rank": whole,
            "attempt": whole,
        }
        for stat in row_dtype(family).names or ():
            if Stat(stat).width > 1:
                continue
            last = self._values(stat, shape).reshape(-1)
            last = narrowed(last) if last.dtype == np.float64 else last
            columns[f"{stat}_last"] = last
            if stat in LAST_ONLY:
                continue
            columns[f"{stat}_count"] = columns["rows"]
            spread = 1 if last.dtype.kind == "u" else last.dtype.type(1.5)
            columns[f"{stat}_min"], columns[f"{stat}_max"] = last // spread, last * spread
            columns[f"{stat}_sum"] = narrowed(last.astype(float) * columns["rows"])
            for part in ("min_step", "max_step"):
                at = self.rng.integers(0, table(ends - starts))
                columns[f"{stat}_{part}"] = steps[table(starts) + at]
        file = f"rollups/{family}-{size}/{number:05d}.parquet"
        grid = Grid(steps, ids, ends - starts)
        self._put(*encoded(file, columns, steps=steps, grids=[grid], compression="zstd"))

    # -- the folder --------------------------------------------------------------------------------

    def _put(self, raw: memoryview, entry: SealedFile) -> SealedFile:
        path = self.folder / entry.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        self.files.append(entry)
        return entry

    def _open(self, entry: SealedFile) -> RandomAccess:
        access = Place.of(self.folder).open(entry.file)
        assert access is not None
        return access

    def _publish(self, count: int) -> None:
        """The small records, sealed by the store's own sealer; then the manifest of everything."""
        number, records = count + 1, list(self._small())
        path = self.folder / f"journal-{number:05d}.gwj"
        out = Journal(path)
        for seq, (type_, step, body) in enumerate(records):
            out.append(pack(Head(type_, 0, 0, 0, seq, step, len(body), 0), body))
        out.close()
        sealer = Sealer(self.folder, 0, 0, None, lambda: None)
        sealer.seal(FullJournal(path, number, 0, len(records) - 1), closing=dict)
        target = self.folder / manifests.NAME
        small = manifests.decode(target.read_bytes())
        columns = {str(family): list(row_dtype(family).names or ()) for family in self.cadence}
        files = (*sorted(self.files, key=lambda file: file.number), *small.files)
        journals = ((1, number, 0, len(records) - 1),)
        whole = replace(small, journals=journals, columns=columns, files=files)
        target.write_bytes(manifests.encode(whole))

    def _small(self) -> Iterator[tuple[Type, int, bytes]]:
        numbered = [[i, subject.to_dict()] for i, subject in enumerate(self.subjects)]
        yield Type.SUBJECTS, 0, to_json(numbered)
        layers = list(dict.fromkeys(s.layer for s in self.subjects if s.kind is Kind.PARAMETER))
        yield Type.GRAPH, 0, to_json(Graph.chain(layers).to_dict())
        yield Type.NOTE, self.steps, to_json({"optimizer": "AdamW"})
        yield Type.CLOSE, self.steps, to_json({"flushed": 0, "dropped": 0})

    def _scalars(self, number: int) -> tuple[memoryview, SealedFile]:
        """What was logged in the time of one journal."""
        steps = np.arange((number - 1) * self.journal, min(number * self.journal, self.steps))
        rows = np.repeat(steps, len(SCALARS))
        columns: dict[str, Any] = {
            "step": rows,
            "name": Words(np.tile(np.arange(len(SCALARS)), len(steps)), list(SCALARS)),
            "value": 2 * np.exp(-rows / self.steps) * (1 + 0.1 * self.rng.random(len(rows))),
        }
        return encoded(f"scalars/{number:05d}.parquet", columns, steps=rows)

    def _ids(self, family: Family) -> NDArray[np.uint32]:
        found = [i for i, subject in enumerate(self.subjects) if subject.kind is family.kind]
        return np.array(found, np.uint32)


def _row_file(
    family: Family, number: int, grid: Grid, rows: NDArray[np.void]
) -> tuple[memoryview, SealedFile]:
    zeros = np.zeros(rows.size, np.int32)
    columns: dict[str, NDArray[Any]] = {
        "step": np.repeat(grid.steps, len(grid.ids)),
        "subject": np.tile(grid.ids, len(grid.steps)),
        "state": zeros.astype(np.uint8),
        "rank": zeros,
        "attempt": zeros,
    }
    for name in rows.dtype.names or ():
        if Stat(name).width == 1:
            values = rows[name].reshape(-1)
            columns[name] = narrowed(values) if values.dtype == np.float64 else values
    file = f"rows/{family}/{number:05d}.parquet"
    return encoded(file, columns, steps=grid.steps, grids=[grid])


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
