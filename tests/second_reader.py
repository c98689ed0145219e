"""A second reader of run folders, written from docs/format.md alone: standard library and numpy.

It shares no line with the package, so that the specification and the package check each other.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

TYPES = {1: "<f4", 2: "<f8", 3: "<u8", 4: "<i8", 5: "<u4", 6: "<u2", 7: "u1", 8: "<u2"}
FAMILIES = ["", "grad", "weight", "update", "optim", "act", "probe", "group"]
KINDS = dict.fromkeys(FAMILIES, "parameter") | {"act": "layer", "probe": "layer", "group": "group"}
VALUED = (0, 5, 6, 7)

Record = tuple[int, str, int, int, int, int, int, bytes]
"""Kind, family, level, flags, sequence number, step, rows, payload."""
Cell = tuple[Any, int]
"""A value, a number or a row of numbers, and its state."""


class Rows(NamedTuple):
    """The rows of one family at one step: states and values of each column."""

    family: str
    step: int
    ids: np.ndarray
    states: dict[str, np.ndarray]
    columns: dict[str, np.ndarray]


def records(data: bytes) -> Iterator[Record]:
    at = 0
    while (at := data.find(b"GWR1", at)) >= 0:
        head = data[at : at + 40]
        if len(head) < 40 or zlib.crc32(head[:36]) != struct.unpack("<I", head[36:])[0]:
            at += 1
            continue
        kind, family, level, flags, seq, step, length, rows, crc = struct.unpack(
            "<BBBBQqIII", head[4:36]
        )
        payload = data[at + 40 : at + 40 + length]
        if len(payload) == length and zlib.crc32(payload) == crc:
            yield kind, FAMILIES[family], level, flags, seq, step, rows, payload
        at += 40 + -(-length // 8) * 8


def array(payload: bytes, at: int) -> tuple[np.ndarray, int]:
    code, planes, _, count = struct.unpack_from("<BBHI", payload, at)
    marks = struct.unpack_from(f"<{planes}I", payload, at + 8)
    at += 8 + 4 * planes
    out = np.empty((count, planes), np.uint8)
    for number, mark in enumerate(marks):
        raw = payload[at : at + (mark & (1 << 30) - 1)]
        at += len(raw)
        raw = zlib.decompress(raw) if mark >> 30 == 1 else raw
        out[:, number] = np.frombuffer(raw, np.uint8)
    flat = out.reshape(-1).view(TYPES[code])
    return ((flat.astype("<u4") << 16).view("<f4") if code == 8 else flat), at


def rounded(values: np.ndarray) -> np.ndarray:
    if values.dtype == "<u8":
        return values
    if values.dtype == "<f8":
        size = np.abs(values)
        fits = (size == 0) | ~np.isfinite(values) | ((size >= 1e-37) & (size <= 3e38))
        with np.errstate(all="ignore"):
            return np.where(fits, values.astype("<f4").astype("<f8"), values)
    if values.ndim > 2:
        bits = values.view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("<u4").view("<f4")
    return values


Head = list[np.ndarray]
"""Steps, sequence numbers, subjects' numbers and bucket sizes of a chunk."""
Columns = dict[tuple[str, int], np.ndarray]
"""The arrays of a chunk by column name and part."""


class Folder:
    """One writer's folder. `cells[stat][step, kind, name]` is (value, state)."""

    def __init__(self, path: Path) -> None:
        self.subjects: dict[int, dict[str, Any]] = {}
        self.scalars: dict[tuple[int, str], float] = {}
        self.events: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.histograms: dict[tuple[str, int, int], tuple[int, np.ndarray, list[int]]] = {}
        self.closed = False
        self.steps: set[int] = set()
        self.cells: dict[str, dict[tuple[int, str, int], Cell]] = {}
        self._seqs: set[int] = set()
        rows: list[tuple[int, Rows]] = []
        seen: set[int] = set()
        for prefix in "sjxabc":
            for file in sorted(path.glob(f"{prefix}*.gw?")):
                schemas: dict[str, list[tuple[str, str, int]]] = {}
                chunks: dict[tuple[str, int, int], tuple[Head, Columns]] = {}
                for record in records(file.read_bytes()):
                    kind, family, level, flags, seq, step, _, payload = record
                    if kind == 2:
                        schemas[family] = json.loads(payload)["columns"]
                    elif kind == 3 and seq not in self._seqs:
                        rows.append((seq, self._step(payload, step, schemas[family], family)))
                        self._seqs.add(seq)
                    elif kind == 16:
                        chunks[family, level, seq] = self._chunk(payload), {}
                    elif kind == 17:
                        length, part, _ = struct.unpack_from("<HBB", payload)
                        name = payload[4 : 4 + length].decode()
                        values, _ = array(payload, -(-(4 + length) // 8) * 8)
                        chunks[family, level, seq][1][name, part] = values
                    elif kind < 16 and seq not in seen:
                        seen.add(seq)
                        self._small(kind, family, flags, step, payload)
                for (family, level, _), chunk in sorted(chunks.items(), key=lambda b: b[0][2]):
                    rows += (self._columns if level == 0 else self._rollup)(family, *chunk)
        for _, at_step in sorted(rows, key=lambda row: row[0]):
            self._put(*at_step)

    def _step(
        self, payload: bytes, step: int, schema: list[tuple[str, str, int]], family: str
    ) -> Rows:
        n, _ = struct.unpack_from("<II", payload)
        ids = np.frombuffer(payload, "<u4", n, 8)
        states = np.frombuffer(payload, "u1", n, 8 + 4 * n)
        dtype = np.dtype([(s, t) if w == 1 else (s, t, w) for s, t, w in schema])
        table = np.frombuffer(payload, dtype, n, 8 + -(-5 * n // 8) * 8)
        columns = {s: rounded(np.ascontiguousarray(table[s])[None])[0] for s, _, _ in schema}
        return Rows(family, step, ids, dict.fromkeys(columns, states), columns)

    def _chunk(self, payload: bytes) -> Head:
        at, arrays = 24, []
        for _ in range(4):
            values, at = array(payload, at)
            arrays.append(values)
        return arrays

    def _columns(self, family: str, head: Head, columns: Columns) -> list[tuple[int, Rows]]:
        steps, seqs, ids, _ = head
        shaped = {
            n: v.reshape(len(ids), len(steps), -1).squeeze(2)
            if v.size == len(ids) * len(steps)
            else v.reshape(len(ids), len(steps), -1)
            for (n, _), v in columns.items()
        }
        states = shaped.pop("state")
        self._seqs |= set(seqs.tolist())
        return [
            (
                int(seq),
                Rows(
                    family,
                    int(step),
                    ids,
                    dict.fromkeys(shaped, states[:, i]),
                    {n: v[:, i] for n, v in shaped.items()},
                ),
            )
            for i, (step, seq) in enumerate(zip(steps, seqs, strict=True))
        ]

    def _rollup(self, family: str, head: Head, columns: Columns) -> list[tuple[int, Rows]]:
        steps, seqs, ids, sizes = head
        shaped = {key: v.reshape(len(ids), len(sizes)) for key, v in columns.items()}
        ends, made = np.cumsum(sizes), list[tuple[int, Rows]]()
        known = set(self._seqs)
        for bucket, (end, size) in enumerate(zip(ends.tolist(), sizes.tolist(), strict=True)):
            inside = range(end - size, end)
            if all(int(seqs[i]) in known for i in inside):
                continue
            self._seqs |= {int(seqs[i]) for i in inside}
            for i in (i for i in inside if int(seqs[i]) not in known):
                states, values = dict[str, np.ndarray](), dict[str, np.ndarray]()
                for name in {name for name, part in columns if part == 3}:
                    final = i == end - 1
                    states[name] = np.where(final, shaped["state", 0][:, bucket], 1).astype(int)
                    last = shaped[name, 3][:, bucket]
                    values[name] = last.astype("<u8" if last.dtype.kind == "u" else "<f8")
                    for part, at in ((1, 5), (2, 6)):
                        if (name, part) in shaped:
                            hit = shaped[name, at][:, bucket] == i - (end - size)
                            hit &= shaped[name, 4][:, bucket] > 0
                            values[name][hit] = shaped[name, part][hit, bucket]
                            states[name][hit] = shaped["valued", 0][hit, bucket]
                made.append((int(seqs[i]), Rows(family, int(steps[i]), ids, states, values)))
        return made

    def _small(self, kind: int, family: str, flags: int, step: int, payload: bytes) -> None:
        if kind == 1:
            self.subjects.update(dict(json.loads(payload)))
        elif kind == 4:
            payload = zlib.decompress(payload[4:]) if flags & 1 else payload
            at = 0
            while at < len(payload):
                number, first, bins, _, *rest = struct.unpack_from("<IiIIQQQQ", payload, at)
                counts = np.frombuffer(payload, "<u8", 2 * bins, at + 48).reshape(2, bins)
                self.histograms[family, number, step] = (first, counts, rest)
                at += 48 + 16 * bins
        elif kind == 5:
            self.events.append(json.loads(payload) | {"step": step})
        elif kind == 7:
            (length,) = struct.unpack_from("<I", payload)
            names, at = json.loads(payload[4 : 4 + length]), -(-(4 + length) // 8) * 8
            for own, name, _, value in struct.iter_unpack("<qIId", payload[at:]):
                self.scalars[own, names[name]] = value
                self.steps.add(own)
        elif kind == 8:
            self.closed = True
        elif kind == 9:
            self.notes.append(json.loads(payload))

    def _put(
        self,
        family: str,
        step: int,
        ids: np.ndarray,
        states: dict[str, np.ndarray],
        columns: dict[str, np.ndarray],
    ) -> None:
        self.steps.add(step)
        for stat, values in columns.items():
            table = self.cells.setdefault(stat, {})
            for i, number in enumerate(ids.tolist()):
                table[step, KINDS[family], number] = values[i], int(states[stat][i])


class Rank(TypedDict):
    """What all folders of one rank hold together; the last attempt owns a step."""

    steps: list[int]
    cells: dict[str, dict[tuple[int, str], Cell]]
    scalars: dict[str, dict[int, float]]
    folders: list[Folder]


def read(run: Path) -> dict[int, Rank]:
    """Rank → steps, cells ({(step, name): (value, state)}), scalars (name → {step: value})."""
    ranks: dict[int, list[Folder]] = {}
    for path in sorted(run.iterdir()):
        if path.is_dir() and re.fullmatch("[0-9]{1,6}-[0-9]{1,6}-[0-9a-f]{8}", path.name):
            ranks.setdefault(int(path.name.split("-")[0]), []).append(Folder(path))
    out: dict[int, Rank] = {}
    for rank, folders in ranks.items():
        owner = {step: folder for folder in folders for step in folder.steps}
        cells: dict[str, dict[tuple[int, str], Cell]] = {}
        scalars: dict[str, dict[int, float]] = {}
        for folder in folders:
            names = {number: data["name"] for number, data in folder.subjects.items()}
            for stat, table in folder.cells.items():
                mine = cells.setdefault(stat, {})
                for (step, _, number), cell in table.items():
                    if owner[step] is folder:
                        mine[step, names[number]] = cell
            for (step, name), value in folder.scalars.items():
                if owner[step] is folder:
                    scalars.setdefault(name, {})[step] = value
        out[rank] = {"steps": sorted(owner), "cells": cells, "scalars": scalars, "folders": folders}
    return out
