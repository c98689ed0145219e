"""Reading a journal: scanned once for what is in it, row bytes fetched again when asked for."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat, family_stats
from gradwatch.store.block import WORST_STATE, Damage, narrowed
from gradwatch.store.bodies import STEP_HEAD, BadBody, from_json
from gradwatch.store.folder import open_regular, pread
from gradwatch.store.planes import from_brain, to_brain
from gradwatch.store.records import FAMILIES, HEAD_BYTES, WIDE, Found, Head, Scan, Type, padded

Layout = tuple[tuple[str, str, int], ...]
_CODES = {"<f4", "<f8", "<u8"}
_PIECE = 32 << 20
STATS = {str(stat): stat for stat in Stat}


class Handle:
    """An open file that closes itself when nobody holds it: a journal may be unlinked meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, length: int, offset: int) -> bytes:
        try:
            return pread(self.descriptor, length, offset)
        except OSError:
            return b""

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One STEP record of a journal: everything but the rows, which stay in the file."""

    seq: int
    step: int
    ids: bytes
    states: bytes
    offset: int
    length: int
    wide: bool


class JournalFile:
    """A journal as far as it has been read; `refresh` reads only new bytes."""

    def __init__(self, path: Path, breathe: Callable[[], None] | None = None) -> None:
        self.path = path
        self._breathe = breathe
        self.steps: dict[tuple[Family, Layout, bytes, bool], list[StepRecord]] = {}
        self.damage: list[Damage] = []
        self.bad_seqs: set[int] = set()
        """Records that are there but damaged: not to be reported as missing as well."""
        self.end = 0
        """Bytes read so far."""
        self._layouts: dict[Family, Layout] = {}
        descriptor = open_regular(path)
        self._handle = Handle(descriptor) if descriptor is not None else None

    def refresh(self) -> list[Found]:
        """Read on; the records that are not rows are given back, rows are kept here."""
        others: list[Found] = []
        while self._handle:
            raw = self._handle.read(_PIECE, self.end)
            scan = Scan(raw)
            for number, found in enumerate(scan):
                if self._breathe and number % 16 == 0:
                    self._breathe()
                if found.head.type == Type.STEP:
                    self._step(found, self.end)
                elif found.head.type == Type.SCHEMA:
                    self._schema(found)
                else:
                    others.append(found)
            for begin, end in scan.bad:
                self.damage.append(Damage(f"{end - begin} bytes of {self.path.name} are no record"))
            self.end += scan.end
            if len(raw) < _PIECE or not scan.end:
                break
        return others

    @property
    def cut(self) -> int:
        """Bytes after the last whole record."""
        if not self._handle:
            return 0
        try:
            return max(0, os.fstat(self._handle.descriptor).st_size - self.end)
        except OSError:
            return 0

    @property
    def opened(self) -> bool:
        """Whether there was a regular file to open."""
        return self._handle is not None

    def blocks(self, elsewhere: frozenset[int] = frozenset()) -> "list[JournalBlock]":
        """The rows read so far, by family and subjects, without those known from elsewhere."""
        if self._handle is None:
            return []
        made = []
        for (family, layout, ids, wide), records in self.steps.items():
            kept = tuple(record for record in records if record.seq not in elsewhere)
            if kept:
                made.append(JournalBlock.of(family, layout, ids, wide, kept, self._handle))
        return made

    def _schema(self, found: Found) -> None:
        family = FAMILIES.get(found.head.family)
        if found.body is None or family is None:
            return  # the built-in layout is used where its size fits
        layout = _layout(bytes(found.body))
        if layout:
            self._layouts[family] = layout

    def _step(self, found: Found, base: int) -> None:
        head, body = found.head, found.body
        family = FAMILIES.get(head.family)
        if family is None:
            self.damage.append(Damage(f"rows of an unknown family {head.family}"))
            return
        record = None if body is None else self._parsed(head, body, base + found.offset)
        layout = self._layouts.get(family) or built_in(family)
        if record is None or record.length != len(record.ids) // 4 * _dtype(layout).itemsize:
            self.bad_seqs.add(head.seq)
            self.damage.append(
                Damage(
                    f"the {family} rows of step {head.step} are damaged",
                    family,
                    head.step,
                    head.step,
                )
            )
            return
        self.steps.setdefault((family, layout, record.ids, record.wide), []).append(record)

    def _parsed(self, head: Head, body: memoryview, offset: int) -> StepRecord | None:
        if len(body) < STEP_HEAD.size:
            return None
        count, width = STEP_HEAD.unpack_from(body)
        begin = STEP_HEAD.size + padded(5 * count)
        if count != head.rows or begin + count * width != len(body):
            return None
        at = STEP_HEAD.size
        ids, states = bytes(body[at : at + 4 * count]), bytes(body[at + 4 * count : at + 5 * count])
        rows_at = offset + HEAD_BYTES + begin
        wide = bool(head.flags & WIDE)
        return StepRecord(head.seq, head.step, ids, states, rows_at, count * width, wide)


@dataclass(frozen=True)
class JournalBlock:
    """Rows of one family and the same subjects in a journal."""

    family: Family
    layout: Layout
    steps: NDArray[np.int64]
    seqs: NDArray[np.uint64]
    ids: NDArray[np.uint32]
    wide: bool
    records: Sequence[StepRecord]
    handle: Handle

    @classmethod
    def of(
        cls,
        family: Family,
        layout: Layout,
        ids: bytes,
        wide: bool,
        records: Sequence[StepRecord],
        handle: Handle,
    ) -> "JournalBlock":
        return cls(
            family,
            layout,
            np.array([record.step for record in records], np.int64),
            np.array([record.seq for record in records], np.uint64),
            np.frombuffer(ids, "<u4").astype(np.uint32),
            wide,
            records,
            handle,
        )

    @property
    def stats(self) -> frozenset[Stat]:
        return frozenset(STATS[name] for name, _, _ in self.layout if name in STATS)

    def states(self, stat: Stat | None = None) -> NDArray[np.uint8] | None:
        flat = np.frombuffer(b"".join(record.states for record in self.records), np.uint8)
        return np.minimum(flat, WORST_STATE).reshape(len(self.records), len(self.ids))

    def rows(self, breathe: Callable[[], None] | None = None) -> NDArray[np.void] | None:
        """All rows [step, subject] as they were put, read from the file in one go."""
        dtype = _dtype(self.layout)
        out = np.empty((len(self.records), len(self.ids)), dtype)
        flat = out.reshape(-1).view(np.uint8)
        at = 0
        for number, record in enumerate(self.records):
            if breathe and number % 32 == 0:
                breathe()
            raw = self.handle.read(record.length, record.offset)
            if len(raw) != record.length:
                return None
            flat[at : at + record.length] = np.frombuffer(raw, np.uint8)
            at += record.length
        return out

    def table(self, breathe: Callable[[], None]) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
        """Rows and states, for sealing; raises OSError where the journal cannot be read back."""
        rows, states = self.rows(breathe), self.states()
        if rows is None or states is None:
            raise OSError("the journal cannot be read back")
        return rows, states

    def column(self, stat: Stat) -> NDArray[np.generic] | None:
        rows = self.rows()
        if rows is None:
            return None
        values = rows[str(stat)]
        if values.dtype == np.float64 and not self.wide:
            return narrowed(values)
        if values.ndim > 2 and values.dtype == np.float32 and not self.wide:
            return from_brain(to_brain(values))
        return values


def built_in(family: Family) -> Layout:
    """The columns this version writes."""
    return tuple((str(item.stat), item.dtype, item.width) for item in family_stats(family))


@lru_cache(maxsize=64)
def _layout(body: bytes) -> Layout | None:
    try:
        data: Any = from_json(body)
    except BadBody:
        return None
    if not isinstance(data, Mapping) or not isinstance(data.get("columns"), list):
        return None
    columns = []
    for item in data["columns"]:
        match item:
            case [str(name), str(code), int(width)] if (
                code in _CODES and 0 < width <= 4096 and name
            ):
                columns.append((name, code, width))
            case _:
                return None
    names = {name for name, _, _ in columns}
    return tuple(columns) if columns and len(names) == len(columns) else None


@lru_cache(maxsize=64)
def _dtype(layout: Layout) -> np.dtype[np.void]:
    return np.dtype(
        [(name, code) if width == 1 else (name, code, width) for name, code, width in layout]
    )
