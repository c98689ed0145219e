"""Run folders that are small on disk and claim much, with checksums that hold."""

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.stats import Family, Stat, row_dtype
from gradwatch.store import manifest as manifests
from gradwatch.store.format import (
    FAMILY_CODES,
    HIST_HEAD,
    NO_SEQ,
    Head,
    Type,
    pack,
    pack_head,
    pack_names,
    pack_scalars,
    to_json,
)
from gradwatch.store.journal import built_in
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.parquet import Grid, Lists, Words, encoded

COLUMNS = {"grad": ["grad_norm", "grad_mean", "grad_skewness", "grad_nan"]}


def subjects_file(names: Sequence[str]) -> tuple[memoryview, SealedFile]:
    count, none = len(names), np.zeros(len(names), np.int32)
    columns: dict[str, Any] = {
        "subject": np.arange(count, dtype=np.uint32),
        "name": list(names),
        "kind": Words(none, ["parameter"]),
        "layer": list(names),
        "rank": none,
        "attempt": none,
        "details": Words(none, ["{}"]),
        "placement": Words(none, [""]),
    }
    return encoded("subjects.parquet", columns, steps=np.empty(0, np.int64), compression="zstd")


def rows_file(
    number: int, grids: Sequence[Grid], stats: Iterable[str] = COLUMNS["grad"]
) -> tuple[memoryview, SealedFile]:
    """Rows of one number each."""
    rows = sum(grid.shape[0] * grid.shape[1] for grid in grids)
    zeros = np.zeros(rows, np.int32)
    steps = [np.repeat(grid.steps, len(grid.ids)) for grid in grids]
    ids = [np.tile(grid.ids, len(grid.steps)) for grid in grids]
    columns: dict[str, Any] = {
        "step": np.concatenate(steps),
        "subject": np.concatenate(ids),
        "state": zeros.astype(np.uint8),
        "rank": zeros,
        "attempt": zeros,
    }
    for stat in stats:
        columns[stat] = np.ones(rows, Stat(stat).dtype)
    file = f"rows/grad/{number:05d}.parquet"
    return encoded(file, columns, steps=columns["step"], grids=grids, compression="zstd")


def scalars_file(
    number: int, steps: np.ndarray, names: Words, values: np.ndarray
) -> tuple[memoryview, SealedFile]:
    columns: dict[str, Any] = {"step": steps, "name": names, "value": values}
    return encoded(f"scalars/{number:05d}.parquet", columns, steps=steps, compression="zstd")


def folder(
    run: Path,
    files: Iterable[tuple[memoryview, SealedFile]] = (),
    *,
    name: str = "0000-0000-00000000",
    columns: Mapping[str, Sequence[str]] = COLUMNS,
    journal: bytes = b"",
) -> Path:
    """A writer's folder with these sealed files, and a journal of these records."""
    path = run / name
    path.mkdir(parents=True)
    entries = []
    for raw, entry in files:
        (path / entry.file).parent.mkdir(parents=True, exist_ok=True)
        (path / entry.file).write_bytes(raw)
        entries.append(entry)
    numbers = [entry.number for entry in entries if entry.number]
    sealed = ((1, max(numbers), 0, 0),) if numbers else ()
    told = Manifest(closed=True, journals=sealed, columns=columns, files=tuple(entries))
    (path / manifests.NAME).write_bytes(manifests.encode(told))
    if journal:
        (path / "journal-90000.gwj").write_bytes(journal)
    return path


def record(kind: Type, body: bytes, *, seq: int = NO_SEQ, step: int = 0, rows: int = 0) -> bytes:
    family = FAMILY_CODES[Family.GRAD] if kind in (Type.STEP, Type.HIST, Type.SCHEMA) else 0
    return pack(Head(kind, family, 0, 0, seq, step, len(body), rows), body)


# -- a little that claims much ---------------------------------------------------------------------


def long_files(run: Path, files: int = 8, steps: int = 1 << 22) -> None:
    """Files of one subject on as many steps as a file may have, each constant."""
    ids = np.zeros(1, np.uint32)
    made = [
        rows_file(n + 1, [Grid(np.arange(n * steps, (n + 1) * steps), ids)]) for n in range(files)
    ]
    folder(run, [subjects_file(["a"]), *made])


def sparse_rows(run: Path, steps: int = 30_000, subjects: int = 4_000) -> None:
    """A row per step of one subject or another: a table of which hardly a cell is stored."""
    first = Grid(np.arange(1), np.arange(subjects, dtype=np.uint32))
    rest = Grid(np.arange(1, steps), np.zeros(1, np.uint32))
    folder(run, [subjects_file([f"p{n}" for n in range(subjects)]), rows_file(1, [first, rest])])


def full_table(run: Path, steps: int = 30_000, subjects: int = 500) -> None:
    """A table that is filled, of one number."""
    ids, part = np.arange(subjects, dtype=np.uint32), (1 << 22) // subjects
    starts = range(0, steps, part)
    grids = [Grid(np.arange(at, min(at + part, steps)), ids) for at in starts]
    stats = [name for name in row_dtype(Family.GRAD).names or () if Stat(name).width == 1]
    made = [rows_file(n + 1, [grid], stats) for n, grid in enumerate(grids)]
    named = subjects_file([f"p{n}" for n in range(subjects)])
    folder(run, [named, *made], columns={"grad": stats})


def claimed_steps(run: Path, files: int = 40, steps: int = 1 << 26) -> None:
    """A manifest of files there are not, with steps there are not."""
    entries = [
        SealedFile(f"rows/grad/{n:05d}.parquet", 1000, steps, ((n * steps, 1, steps),), 100, (0,))
        for n in range(1, files + 1)
    ]
    path = folder(
        run, [subjects_file(["a"]), rows_file(1, [Grid(np.arange(3), np.zeros(1, "u4"))])]
    )
    told = manifests.decode((path / manifests.NAME).read_bytes())
    told = Manifest(columns=told.columns, files=(*told.files, *entries))
    (path / manifests.NAME).write_bytes(manifests.encode(told))


def many_scalars(run: Path, names: int = 14_000, steps: int = 14_000) -> None:
    """Each name logged once, each on a step of its own."""
    words = Words(np.arange(names), [f"s{n}" for n in range(names)])
    folder(run, [scalars_file(1, np.arange(names) * steps // names, words, np.ones(names))])


def long_name(run: Path, length: int = 5_000_000, steps: int = 800) -> None:
    """One name that stands in every row of an export."""
    grid = Grid(np.arange(steps), np.zeros(1, np.uint32))
    folder(run, [subjects_file(["n" * length]), rows_file(1, [grid])])


def many_subjects(run: Path, count: int = 3_000_000) -> None:
    """A table of subjects of which each takes more memory than disk."""
    grid = Grid(np.arange(1), np.arange(count, dtype=np.uint32))
    names = [f"{n:x}" for n in range(count)]
    folder(run, [subjects_file(names), rows_file(1, [grid], ["grad_norm"])])


def many_events(run: Path, files: int = 4, count: int = 1 << 22) -> None:
    """The same event again and again."""
    zeros = np.zeros(count, np.int32)
    columns: dict[str, Any] = {
        "step": zeros.astype(np.int64),
        "kind": Words(zeros, ["audit"]),
        "text": Words(zeros, ["x"]),
        "subject": Words(zeros, [""]),
        "data": Words(zeros, ["{}"]),
        "wall": zeros.astype(float),
    }
    made = [
        encoded(f"events/{n + 1:05d}.parquet", columns, steps=columns["step"], compression="zstd")
        for n in range(files)
    ]
    grid = Grid(np.arange(3), np.zeros(1, np.uint32))
    folder(run, [subjects_file(["a"]), rows_file(1, [grid]), *made])


def packed_histograms(run: Path, files: int = 20, rows: int = 1 << 12, bins: int = 1 << 10) -> None:
    """Histograms of zeros, as long as they may be."""
    offsets, values = np.arange(rows + 1) * bins, np.zeros(rows * bins, np.uint64)
    none = np.zeros(rows, np.uint64)
    columns: dict[str, Any] = {
        "step": np.arange(rows),
        "subject": none.astype(np.uint32),
        "rank": none.astype(np.int32),
        "attempt": none.astype(np.int32),
        "first_exponent": none.astype(np.int32) - bins // 2,
        "negative": Lists(offsets, values),
        "positive": Lists(offsets, values),
    }
    columns |= dict.fromkeys(("zeros", "nan", "positive_inf", "negative_inf"), none)
    made = [
        encoded(
            f"histograms/grad/{n + 1:05d}.parquet",
            {**columns, "step": np.arange(n * rows, (n + 1) * rows)},
            steps=np.arange(n * rows, (n + 1) * rows),
            compression="zstd",
        )
        for n in range(files)
    ]
    grid = Grid(np.arange(files * rows), np.zeros(1, np.uint32))
    folder(run, [subjects_file(["a"]), rows_file(1, [grid]), *made])


def sparse_journal(run: Path, size: int = 1 << 40) -> None:
    """A journal that is one hole."""
    path = folder(run, journal=record(Type.NOTE, b"{}", seq=0))
    os.truncate(path / "journal-90000.gwj", size)


def far_records(run: Path, records: int = 20_000) -> None:
    """Each record is of another subject and another step."""
    stats = row_dtype(Family.GRAD)
    layout = [list(column) for column in built_in(Family.GRAD)]
    out = [record(Type.SCHEMA, to_json({"family": "grad", "columns": layout}))]
    for n in range(records):
        ids = np.array([n], "<u4").tobytes() + bytes(4)
        body = np.array([1, stats.itemsize], "<u4").tobytes() + ids + bytes(stats.itemsize)
        out.append(record(Type.STEP, body, seq=n, step=n, rows=1))
    folder(run, journal=b"".join(out))


def claimed_records(run: Path, records: int = 1000) -> None:
    """Heads that claim more bytes, rows or subjects than there are."""
    out = []
    for n in range(records):
        head = Head(Type.STEP, 1, 0, 0, n, n, 16, 1 << 31)
        body = np.array([1 << 31, 1 << 31, 0, 0], "<u4").tobytes()
        out.append(pack_head(head, zlib.crc32(body)) + body)
    far = Head(Type.STEP, 1, 0, 0, records, 0, 64 << 20, 1 << 20)
    folder(run, journal=b"".join(out) + pack_head(far, 0))


def scalars_in_journal(run: Path, records: int = 300, names: int = 1000) -> None:
    """Names upon names, each logged once."""
    out = [
        record(Type.SCALARS, pack_scalars([(n, f"{n}.{i}", 1.0) for i in range(names)]), seq=n)
        for n in range(records)
    ]
    folder(run, journal=b"".join(out))


def many_folders(run: Path, count: int = 100_000, *, ranks: bool = False) -> None:
    """As many attempts, or ranks, as a folder can name."""
    run.mkdir(parents=True)
    for n in range(count):
        (run / (f"{n}-0-00000000" if ranks else f"0-{n}-00000000")).mkdir()


def ranks_with_rows(run: Path, ranks: int = 300, steps: int = 1 << 18) -> None:
    """Every rank has the same few constant files."""
    files = [subjects_file(["a"]), rows_file(1, [Grid(np.arange(steps), np.zeros(1, "u4"))])]
    for n in range(ranks):
        folder(run, files, name=f"{n:04d}-0000-00000000")


def many_files(run: Path, count: int = 100_000) -> None:
    """A manifest of files there are not."""
    path = folder(run)
    entries = tuple(
        SealedFile(f"rows/grad/{n:05d}.parquet", 1000, 1, ((n, 1, 1),), 100, (0,))
        for n in range(1, count + 1)
    )
    told = Manifest(columns=COLUMNS, files=entries)
    (path / manifests.NAME).write_bytes(manifests.encode(told))


def large_notes(run: Path, records: int = 400, items: int = 40_000) -> None:
    """JSON that takes more memory than disk: empty lists."""
    out = [
        record(Type.NOTE, b'{"%d": [' % n + b"[]," * items + b"[]]}", seq=n) for n in range(records)
    ]
    folder(run, journal=b"".join(out))


def large_graph(run: Path, nodes: int = 400_000) -> None:
    """As many layers as 16 MB of JSON name."""
    names = [f"{n:x}" for n in range(nodes)]
    body = to_json({"nodes": [[n, "", False] for n in names], "edges": [], "assumed": False})
    folder(run, journal=record(Type.GRAPH, body[: 16 << 20], seq=0))


def hist_records(run: Path, records: int = 300, each: int = 1000) -> None:
    """Histograms without a bin: a head each."""
    out = []
    for n in range(records):
        body = b"".join(HIST_HEAD.pack(i, 0, 0, 0, 1, 0, 0, 0) for i in range(each))
        out.append(record(Type.HIST, body, seq=n, step=n, rows=each))
    folder(run, journal=b"".join(out))


def shared_names(run: Path, records: int = 20_000) -> None:
    """A long list of names before a single number, in every record."""
    names = pack_names([f"{n}" for n in range(50)])
    row = np.zeros(1, [("step", "<i8"), ("name", "<u4"), ("zero", "<u4"), ("value", "<f8")])
    out = [record(Type.SCALARS, names + row.tobytes(), seq=n, step=n) for n in range(records)]
    folder(run, journal=b"".join(out))


HOSTILE: dict[str, Callable[[Path], None]] = {
    made.__name__: made
    for made in (
        long_files,
        sparse_rows,
        full_table,
        claimed_steps,
        many_scalars,
        long_name,
        many_subjects,
        many_events,
        packed_histograms,
        sparse_journal,
        far_records,
        claimed_records,
        scalars_in_journal,
        many_folders,
        ranks_with_rows,
        many_files,
        large_notes,
        large_graph,
        hist_records,
        shared_names,
    )
}
HOSTILE |= {
    "many_ranks": partial(many_folders, ranks=True),
    # What is just not refused.
    "subjects_below": partial(many_subjects, count=60_000),
    "events_below": partial(many_events, files=1, count=250_000),
    "scalars_below": partial(many_scalars, names=5_700, steps=5_700),
    "steps_below": partial(long_files, files=2, steps=1 << 21),
    "ranks_below": partial(ranks_with_rows, ranks=60),
    "folders_below": partial(many_folders, count=4_000),
}
