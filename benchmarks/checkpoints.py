"""What scanning a checkpoint costs beside reading the same mapped bytes once, and how much memory.

Speeds are per core: thread time of the least disturbed of a few rounds, the floor measured in the
same process on the same bytes. The memory is the anonymous memory of all processes of a scan of 20
hard links to one shard, over that of idle interpreters with the same modules.
"""

import json
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.floor import read, words
from gradwatch import kernel
from gradwatch.checkpoints import ScanOptions
from gradwatch.checkpoints.blocks import mapping
from gradwatch.checkpoints.index import FileId, Index
from gradwatch.checkpoints.measure import measure_tensors, measuring_units
from gradwatch.checkpoints.readers import open_index
from gradwatch.kernel import Batch, Dtype

ROUNDS = int(os.environ.get("GRADWATCH_BENCH_ROUNDS", "3"))
SIDE = 4096
LINKS = 20
BARS = {"moments": 0.5, "everything": 0.25, "numpy": 30.0, "memory": 256.0}
KINDS = {"F32": Dtype.F32, "BF16": Dtype.BF16}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gradwatch-bench-"))
    try:
        print(f"instruction set {kernel.instruction_set}, {ROUNDS} rounds, one core")
        for kind in KINDS:
            speeds(shard(folder / f"{kind}.safetensors", kind, 8 if kind == "F32" else 16), kind)
        memory(folder)
    finally:
        shutil.rmtree(folder)


def speeds(path: Path, kind: str) -> None:
    """Floor, moments, everything and numpy on the same bytes."""
    index = open_index(path)
    floor = least(lambda: read_all(index, KINDS[kind]))
    moments = least(lambda: measure_all(index, full=False))
    everything = least(lambda: measure_all(index, full=True))
    gb = index.bytes / 1e9
    print(f"{kind}, {gb:.2f} GB: reading {gb / floor:.1f} GB/s")
    line("  moments", gb, moments, floor, BARS["moments"])
    line("  everything", gb, everything, floor, BARS["everything"])
    if kind == "F32":
        share = index.tensors[0].bytes / index.bytes
        script = least(lambda: numpy_script(index), rounds=1) / share
        met = verdict(script / everything >= BARS["numpy"])
        print(
            f"  a numpy script {gb / script:.2f} GB/s: we are {script / everything:.0f} × ({met})"
        )


def line(name: str, gb: float, seconds: float, floor: float, bar: float) -> None:
    met = verdict(floor / seconds >= bar)
    print(f"{name} {gb / seconds:.1f} GB/s, {floor / seconds:.2f} of reading (bar {bar}: {met})")


def verdict(met: bool) -> str:
    return "met" if met else "missed"


def memory(folder: Path) -> None:
    """Anonymous memory and time of a checkpoint of 20 hard links on all cores."""
    index = linked(folder, open_index(folder / "F32.safetensors"))
    small = replace(index, tensors=index.tensors[:1], files=index.files[:1])
    workers = len(os.sched_getaffinity(0))
    idle = peak(lambda: measure_tensors(small, ScanOptions(workers), full=False, hashed=False))
    begin = time.monotonic()
    most = peak(lambda: measure_tensors(index, ScanOptions(workers), full=True, hashed=False))
    seconds = time.monotonic() - begin
    extra = (most - idle) / 2**20 + 0.0
    met = verdict(extra <= BARS["memory"])
    print(
        f"{LINKS} shards, {index.bytes / 1e9:.1f} GB, {workers} processes: {seconds:.1f} s, "
        f"{index.bytes / 1e9 / seconds:.1f} GB/s, {extra:.0f} MB of anonymous memory over idle "
        f"interpreters ({idle / 2**20:.0f} MB; bar {BARS['memory']:.0f}: {met})"
    )


def linked(folder: Path, index: Index) -> Index:
    """One checkpoint of many files that are one file on the disk."""
    files, tensors = [], []
    for number in range(LINKS):
        path = folder / f"shard-{number}.safetensors"
        os.link(index.files[0].path, path)
        status = path.stat()
        files.append(FileId(str(path), status.st_size, status.st_mtime_ns, status.st_ino))
        for tensor in index.tensors:
            shards = tuple(replace(shard, file=number) for shard in tensor.shards)
            tensors.append(replace(tensor, name=f"{number}.{tensor.name}", shards=shards))
    return replace(index, files=tuple(files), tensors=tuple(tensors))


def peak(work: Callable[[], object]) -> int:
    """The largest anonymous memory of this process and its children while `work` runs."""
    highest, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            highest[0] = max(highest[0], sum(anonymous(pid) for pid in family()))
            done.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return highest[0]


def family() -> Iterator[int]:
    """This process and all its descendants."""
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        yield pid
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += [int(word) for word in path.read_text().split()]
            except OSError:
                continue


def anonymous(pid: int) -> int:
    try:
        for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if text.startswith("Anonymous:"):
                return int(text.split()[1]) * 1024
    except OSError:
        pass
    return 0


def shard(path: Path, kind: str, count: int) -> Path:
    """A safetensors file of `count` square matrices, 512 MB in all."""
    size = SIDE * SIDE * KINDS[kind].itemsize
    header = {
        f"layers.{i}.weight": {
            "dtype": kind,
            "shape": [SIDE, SIDE],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(count)
    }
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for _ in range(count):
            values = rng.standard_normal((SIDE, SIDE), np.float32) * np.float32(0.02)
            if kind == "BF16":
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
            else:
                file.write(values.tobytes())
    return path


def read_all(index: Index, dtype: Dtype) -> None:
    for tensor in index.tensors:
        view = mapping()(index.files[0], tensor.shards[0].offset, tensor.bytes)
        read(words(Batch.of([view.ctypes.data], [tensor.count], [dtype])))


def measure_all(index: Index, *, full: bool) -> None:
    for unit in measuring_units(index, full=full, hashed=False):
        unit.done(mapping)


def numpy_script(index: Index) -> None:
    """What one writes by hand for the same numbers of one tensor."""
    tensor = index.tensors[0]
    x = mapping()(index.files[0], tensor.shards[0].offset, tensor.bytes).view(np.float32)
    finite = x[np.isfinite(x)].astype(np.float64)
    mean, std = finite.mean(), finite.std()
    z = (finite - mean) / std
    z.min(), z.max(), (z**3).mean(), (z**4).mean(), np.abs(finite).mean(), np.abs(finite).max()
    np.count_nonzero(x == 0), np.isnan(x).sum(), np.isinf(x).sum(), np.linalg.norm(finite)
    exponents = np.frexp(finite[finite != 0])[1]
    np.bincount(exponents + 1100)
    table = x.reshape(tensor.shape)
    (table != 0).any(axis=0), (table != 0).any(axis=1)
    np.sqrt((table**2).mean(axis=0)), np.sqrt((table**2).mean(axis=1))


def least(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Thread time of the least disturbed round."""
    found = []
    for _ in range(rounds):
        begin = time.thread_time()
        work()
        found.append(time.thread_time() - begin)
    return min(found)


if __name__ == "__main__":
    main()
