"""A second reader of run folders, written from docs/format.md alone: numpy, and pyarrow for tables.

It shares no line with the package, so that the specification and the package check each other.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow.parquet as pq

FAMILIES = ["", "grad", "weight", "update", "optim", "act", "probe", "group"]
VALUED = (0, 5, 6, 7)
KEYS = {"step", "subject", "state", "rank", "attempt"}

Record = tuple[int, str, int, bytes]
"""Kind, family, step, payload."""
Cell = tuple[Any, int]
"""A value, a number or a row of numbers, and its state."""


def records(data: bytes) -> Iterator[Record]:
    at = 0
    while (at := data.find(b"GWR1", at)) >= 0:
        head = data[at : at + 40]
        if len(head) < 40 or zlib.crc32(head[:36]) != struct.unpack("<I", head[36:])[0]:
            at += 1
            continue
        kind, family, _, _, step, length, _, crc = struct.unpack("<BBHQqIII", head[4:36])
        payload = data[at + 40 : at + 40 + length]
        if len(payload) == length and zlib.crc32(payload) == crc:
            yield kind, FAMILIES[family], step, payload
        at += 40 + -(-length // 8) * 8


def table(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet file; null is None."""
    found = pq.read_table(path)
    return {
        name: [np.array(v, "<f4") if isinstance(v, list) else v for v in column.to_pylist()]
        for name, column in zip(found.column_names, found.columns, strict=True)
    }


def fits(path: Path, entry: dict[str, Any]) -> bool:
    """Whether a sealed file is the one that the manifest means."""
    raw = path.read_bytes() if path.exists() else b""
    if len(raw) != entry["bytes"]:
        return False
    sums = [zlib.crc32(raw[len(raw) - entry["footer"] :])]
    facts = pq.read_metadata(path)
    for at in range(facts.num_columns):
        column = facts.row_group(0).column(at)
        begin = column.dictionary_page_offset or column.data_page_offset
        sums.append(zlib.crc32(raw[begin : begin + column.total_compressed_size]))
    assert facts.num_row_groups == 1
    assert facts.num_rows == entry["rows"]
    return bool("".join(f"{checksum:08x}" for checksum in sums) == entry["checksums"])


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


class Folder:
    """One writer's folder. `cells[stat][step, id]` is (value, state)."""

    def __init__(self, path: Path) -> None:
        self.attempt = int(path.name.split("-")[1])
        self.names: dict[int, str] = {}
        self.scalars: dict[tuple[int, str], float] = {}
        self.steps: set[int] = set()
        self.cells: dict[str, dict[tuple[int, int], Cell]] = {}
        manifest: dict[str, Any] = {"files": [], "journals": []}
        if (path / "manifest.json").exists():
            raw = (path / "manifest.json").read_bytes()
            manifest = json.loads(raw)
            front = raw[: raw.rindex(b'"crc32"')]
            assert int(manifest["crc32"], 16) == zlib.crc32(front)
        files = {item["file"]: item for item in manifest["files"]}
        order = ["rollups", "rows", "sketches", "scalars", "subjects.parquet"]
        for kind in order:
            for name in sorted(name for name in files if name.split("/")[0] == kind):
                self._sealed(path / name, name, files)
        for journal in sorted(path.glob("journal-*.gwj")):
            number = int(journal.stem.split("-")[1])
            if not any(first <= number <= last for first, last, _, _ in manifest["journals"]):
                self._journal(journal)
        for stat in (stat for stat in self.cells if stat.endswith("_sketch")):
            for at, (value, state) in self.cells[stat].items():
                if state in VALUED and np.isnan(value).all():
                    self.cells[stat][at] = value, 1

    def _sealed(self, path: Path, name: str, files: dict[str, Any]) -> None:
        kind, *parts = name.split("/")
        if kind == "rollups":
            family, level = parts[0].split("-")
            if level != "10" or f"rows/{family}/{parts[1]}" in files:
                return
        (path,) = (p for p in (path, Path(f"{path}.part")) if fits(p, files[name]))
        columns = table(path)
        if kind == "subjects.parquet":
            self.names.update(zip(columns["subject"], columns["name"], strict=True))
            return
        if kind in ("rows", "scalars", "rollups"):
            for first, distance, count in files[name]["steps"]:
                self.steps |= {first + distance * i for i in range(count)}
        if kind == "scalars":
            for step, scalar, value in zip(*columns.values(), strict=True):
                self.scalars[step, scalar] = value
            return
        (self._rollup if kind == "rollups" else self._rows)(columns)

    def _rows(self, columns: dict[str, list[Any]]) -> None:
        places = list(zip(columns["step"], columns["subject"], strict=True))
        nothing = np.full(32, np.nan, "<f4")
        if "state" in columns and "grad_norm" in columns:
            for at, state in zip(places, columns["state"], strict=True):
                self.cells.setdefault("grad_sketch", {})[at] = nothing, state
        for stat in columns.keys() - KEYS:
            cells = self.cells.setdefault(stat, {})
            for row, at in enumerate(places):
                value = columns[stat][row]
                if stat.endswith("_sketch"):
                    cells[at] = nothing if value is None else value, cells[at][1]
                else:
                    cells[at] = np.nan if value is None else value, columns["state"][row]

    def _rollup(self, columns: dict[str, list[Any]]) -> None:
        for stat in {name[: -len("_last")] for name in columns if name.endswith("_last")}:
            cells = self.cells.setdefault(stat, {})
            for row, subject in enumerate(columns["subject"]):
                state, last = columns["state"][row], columns[f"{stat}_last"][row]
                if last is not None or state not in VALUED:
                    value = np.nan if last is None else last
                    cells[columns["last_step"][row], subject] = value, state
                for part in ("min", "max") if f"{stat}_min" in columns else ():
                    if columns[f"{stat}_{part}"][row] is not None:
                        step = columns[f"{stat}_{part}_step"][row]
                        cells[step, subject] = columns[f"{stat}_{part}"][row], state

    def _journal(self, path: Path) -> None:
        schemas: dict[str, list[tuple[str, str, int]]] = {}
        for kind, family, step, payload in records(path.read_bytes()):
            if kind == 1:
                self.names.update({number: data["name"] for number, data in json.loads(payload)})
            elif kind == 2:
                schemas[family] = json.loads(payload)["columns"]
            elif kind == 3:
                self._step(payload, step, schemas[family])
            elif kind == 7:
                (length,) = struct.unpack_from("<I", payload)
                names, at = json.loads(payload[4 : 4 + length]), -(-(4 + length) // 8) * 8
                for own, name, _, value in struct.iter_unpack("<qIId", payload[at:]):
                    self.scalars[own, names[name]] = value
                    self.steps.add(own)

    def _step(self, payload: bytes, step: int, schema: list[tuple[str, str, int]]) -> None:
        n, _ = struct.unpack_from("<II", payload)
        ids = np.frombuffer(payload, "<u4", n, 8).tolist()
        states = np.frombuffer(payload, "u1", n, 8 + 4 * n).tolist()
        dtype = np.dtype([(s, t) if w == 1 else (s, t, w) for s, t, w in schema])
        found = np.frombuffer(payload, dtype, n, 8 + -(-5 * n // 8) * 8)
        self.steps.add(step)
        for stat, _, _ in schema:
            values = rounded(np.ascontiguousarray(found[stat])[None])[0]
            for number, value, state in zip(ids, values, states, strict=True):
                self.cells.setdefault(stat, {})[step, number] = value, state


class Rank(TypedDict):
    """What all folders of one rank hold together; an attempt owns all from its first step on."""

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
    every = [folder for folders in ranks.values() for folder in folders if folder.steps]
    out: dict[int, Rank] = {}
    for rank, folders in ranks.items():
        owner: dict[int, Folder] = {}
        for folder in folders:
            end = min([1 << 62, *(min(f.steps) for f in every if f.attempt > folder.attempt)])
            owner |= {step: folder for step in folder.steps if step < end}
        cells: dict[str, dict[tuple[int, str], Cell]] = {}
        scalars: dict[str, dict[int, float]] = {}
        for folder in folders:
            for stat, found in folder.cells.items():
                mine = cells.setdefault(stat, {})
                for (step, number), cell in found.items():
                    if owner.get(step) is folder:
                        mine[step, folder.names[number]] = cell
            for (step, name), value in folder.scalars.items():
                if owner.get(step) is folder:
                    scalars.setdefault(name, {})[step] = value
        out[rank] = {"steps": sorted(owner), "cells": cells, "scalars": scalars, "folders": folders}
    return out
