"""The run folder: what a row costs the caller, the disk and the reader, beside sqlite and Parquet.

Rows of a gradient's columns as a network in training gives them: those with real numbers drift and
are noisy, the counts hardly change. All three stores get the same numbers, one after the other in
every round; sketches are left out, except where the size of a long run is computed.
"""

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradwatch.run import Subject
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store import Retention, Writer, open_run

TENSORS, STEPS, ROUNDS = 200, 1024, 3
REALS = (
    "norm", "mean", "std", "abs_mean", "abs_max", "min", "max", "skewness", "kurtosis",
    "zero_fraction",
)  # fmt: skip


def rows_of(tensors: int, steps: int, *, sketches: bool = False) -> list[np.ndarray]:
    """A gradient's rows, each column of each tensor an AR(1) walk."""
    rng = np.random.default_rng(0)
    level = rng.normal(size=(tensors, len(REALS)))
    state = np.zeros_like(level)
    made = []
    for _ in range(steps):
        state = 0.95 * state + 0.1 * rng.normal(size=state.shape)
        rows = np.zeros(tensors, row_dtype(Family.GRAD))
        for column, name in enumerate(REALS):
            sign = -1 if name in ("mean", "min") else 1
            rows[f"grad_{name}"] = sign * 1e-2 * np.exp(level[:, column] + state[:, column])
        rows["grad_cosine"] = np.tanh(state[:, 0])
        rows["grad_count"] = 65536
        if sketches:
            rows["grad_sketch"] = rng.normal(size=(tensors, 32))
        made.append(rows)
    return made


def write(path: Path, rows: list[np.ndarray], keep: Retention | None = None) -> dict[str, float]:
    """Seconds per row of the caller and of the whole way to the sealed file, and bytes per row."""
    tensors = len(rows[0])
    writer = Writer.create(path, name="bench", keep=keep)
    ids = writer.declare([Subject(Kind.PARAMETER, f"layer{n}.weight") for n in range(tensors)])
    states = np.zeros(tensors, np.uint8)
    calls = []
    began = time.process_time()
    for step, row in enumerate(rows):
        before = time.perf_counter()
        writer.put(Family.GRAD, step, ids, row, states)
        calls.append(time.perf_counter() - before)
        if step % 64 == 63:
            writer.flush()
    writer.close(120.0)
    writer.thread.finished.wait(120.0)
    spent = time.process_time() - began
    count = len(rows) * tensors
    sizes = {}
    assert writer.folder is not None
    for file in writer.folder.iterdir():
        sizes[file.name[0]] = sizes.get(file.name[0], 0) + file.stat().st_size
    return {
        "caller": float(np.median(calls)) / tensors,
        "cpu": spent / count,
        **{f"bytes_{letter}": size / count for letter, size in sizes.items()},
        "dropped": writer.dropped,
    }


def write_sqlite(path: Path, rows: list[np.ndarray]) -> float:
    """Seconds of CPU per row, committed every 64 steps."""
    began = time.process_time()
    base = sqlite3.connect(path)
    base.execute("pragma journal_mode=wal")
    names = [name for name in rows[0].dtype.names or () if name != "grad_sketch"]
    base.execute(f"create table t (step int, tensor int, {', '.join(names)})")
    places = ",".join("?" * (2 + len(names)))
    for step, row in enumerate(rows):
        values = [(step, n, *(v if type(v) is float else int(v) for v in item)) for n, item in
                  enumerate(row[names].tolist())]  # fmt: skip
        base.executemany(f"insert into t values ({places})", values)
        if step % 64 == 63:
            base.commit()
    base.commit()
    base.close()
    return (time.process_time() - began) / (len(rows) * len(rows[0]))


def read_sqlite(path: Path) -> np.ndarray:
    base = sqlite3.connect(path)
    found = np.array(base.execute("select grad_norm from t order by rowid").fetchall())
    base.close()
    return found


def write_parquet(path: Path, rows: list[np.ndarray]) -> float:
    """Seconds of CPU per row, a row group per 256 steps."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    began = time.process_time()
    names = [name for name in rows[0].dtype.names or () if name != "grad_sketch"]
    writer = None
    for at in range(0, len(rows), 256):
        block = np.concatenate(rows[at : at + 256])
        table = arrow.table({name: _short(block[name]) for name in names})
        writer = writer or parquet.ParquetWriter(
            path,
            table.schema,
            compression="zstd",
            use_dictionary=False,
            use_byte_stream_split=[f.name for f in table.schema if f.type == arrow.float32()],
        )
        writer.write_table(table)
    if writer:
        writer.close()
    return (time.process_time() - began) / (len(rows) * len(rows[0]))


def _short(values: np.ndarray) -> np.ndarray:
    short = values.astype(np.float32) if values.dtype == np.float64 else values
    return np.ascontiguousarray(short)


def read_parquet(path: Path) -> np.ndarray:
    import pyarrow.parquet as parquet

    found: np.ndarray = parquet.read_table(path, columns=["grad_norm"])["grad_norm"].to_numpy()
    return found


def read_ours(path: Path) -> np.ndarray:
    return open_run(path).series[Stat.GRAD_NORM]


def seconds(read: Callable[[Path], np.ndarray], path: Path) -> float:
    before = time.process_time()
    read(path)
    return time.process_time() - before


def compare(folder: Path) -> None:
    """The same rows through all three, interleaved."""
    rows = rows_of(TENSORS, STEPS)
    count = TENSORS * STEPS
    writing: dict[str, list[float]] = {}
    reading: dict[str, list[float]] = {}
    ours: dict[str, float] = {}
    size: dict[str, float] = {}
    for number in range(ROUNDS):
        paths = {word: folder / f"{word}{number}" for word in ("gradwatch", "sqlite", "parquet")}
        ours = write(paths["gradwatch"], rows)
        writing.setdefault("gradwatch", []).append(ours["cpu"])
        writing.setdefault("sqlite", []).append(write_sqlite(paths["sqlite"], rows))
        writing.setdefault("parquet", []).append(write_parquet(paths["parquet"], rows))
        for word, read in (
            ("gradwatch", read_ours),
            ("sqlite", read_sqlite),
            ("parquet", read_parquet),
        ):
            reading.setdefault(word, []).append(seconds(read, paths[word]))
        size = {word: paths[word].stat().st_size / count for word in ("sqlite", "parquet")}
    size["gradwatch"] = ours["bytes_s"]
    print(f"run folder: {STEPS} steps × {TENSORS} rows of 17 columns, 11 noisy; {ROUNDS} rounds")
    print(f"  caller: {1e6 * ours['caller']:.3f} µs per row (bar 0.15)")
    print("                 write, CPU µs/row   bytes/row   read one column, ms")
    for word in ("gradwatch", "sqlite", "parquet"):
        print(
            f"  {word:10s}   {1e6 * min(writing[word]):15.2f}   {size[word]:9.1f}"
            f"   {1e3 * min(reading[word]):12.1f}"
        )
    base = min(writing["gradwatch"]), size["gradwatch"], min(reading["gradwatch"])
    for word in ("sqlite", "parquet"):
        ratios = min(writing[word]) / base[0], size[word] / base[1], min(reading[word]) / base[2]
        print(f"  {word} ÷ gradwatch: write {ratios[0]:.1f}, bytes {ratios[1]:.2f}, "
              f"read {ratios[2]:.1f}")  # fmt: skip
    levels = sum(ours.get(f"bytes_{letter}", 0) for letter in "abc")
    twenty = ours["bytes_s"] * 13 / 11
    print(
        f"  sealed rows {ours['bytes_s']:.1f} B; 20 columns, 13 noisy, would be {twenty:.1f} B "
        f"(bar 45); levels {levels:.1f} B more"
    )


def million(folder: Path) -> None:
    """Bytes of 10^6 steps × 1,000 tensors with retention, computed from a smaller run."""
    tensors, steps = 100, 4000
    found = write(folder / "million", rows_of(tensors, steps, sketches=True))
    size = {0: found["bytes_s"]}
    size |= {level: found[f"bytes_{letter}"] * 10**level for level, letter in enumerate("abc", 1)}
    kept = Retention()
    rows = {0: kept.raw, 1: kept.tens / 10, 2: kept.hundreds / 100, 3: 10**6 / 1000}
    total = 1000 * sum(size[level] * rows[level] for level in size)
    each = ", ".join(f"{size[level]:.0f} B per {10**level}" for level in size)
    print(
        f"  10^6 × 1,000 with retention: {total / 1e9:.2f} GB (bar 4); {each} rows, with sketches"
    )


def large(folder: Path) -> None:
    """Open a run and read one statistic, scaled to 10^5 steps × 200 tensors."""
    tensors, steps = 200, 10_000
    some = rows_of(tensors, 500)
    write(folder / "large", [some[number % 500] for number in range(steps)])
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run = open_run(folder / "large")
        opened = time.perf_counter()
        _ = run.series[Stat.GRAD_NORM]
        times.append((opened - began, time.perf_counter() - opened))
    opening, reading = min(times, key=sum)
    print(
        f"  {steps} steps × {tensors}: open {opening:.3f} s, read one statistic {reading:.3f} s; "
        f"ten times as long: {10 * (opening + reading):.2f} s (bar 1)"
    )


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gradwatch-bench-"))
    try:
        compare(folder)
        million(folder)
        large(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
