"""Runs forged in their structure, with checksums that hold: a sentence or a run, nothing else."""

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults import small_run
from tests.faults.test_mutation import (
    forged_journal,
    forged_parquet,
    vouched,
)
from tests.store.forging import reforged

from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.store import list_runs, manifest, open_run
from gradwatch.store.format import HEAD_BYTES, RecordScanner, Type, pack

QUICK, WARM, MANY = 21, 14, 1000
SECONDS = 1.0
MORE_MEMORY = 1 << 30
HUGE = "1" + "0" * 400
ODD = [
    "1e999", HUGE, f"-{HUGE}", "-1", "0", "0.5", "9223372036854775808", "18446744073709551616",
    "NaN", "-Infinity", '"NaN"', '"Infinity"', "null", "true", "[]", "{}", '""', '"\\ud800"',
    '"\\u0000"', '"/../.."', "[" * 40 + "]" * 40, "[" * 5000 + "]" * 5000, '{"a": 1, "a": 2}',
    f'"{"x" * 70_000}"', "[" + "0," * 20_000 + "0]", "[[0, 1, 134217728]]", "[[0, 0, 1000000]]",
    f"[{HUGE}]", '["\\udfff"]', "[1e308, -1e308]",
]  # fmt: skip
"""In place of a value."""
SUBJECT = (
    b'{"shape": [3, 4], "dtype": "float32", "count": 12, "group": 0, "frozen": false, "order": 1,'
    b' "tied_to": ["a"], "module": "Linear"}'
)
PLACEMENT = b'{"global_shape": [6, 4], "offset": [0, 0], "shape": [3, 4], "replica": 0}'
MARK = "\0odd\0"


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with each of its keys."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list) and tree[key]:
            yield from places(tree[key])


def odd_json(raw: bytes, chance: random.Random) -> bytes:
    """The document with some of its values replaced, dropped, doubled or given another name."""
    tree = json.loads(raw)
    if not isinstance(tree, dict | list) or not tree:
        return chance.choice(ODD).encode()
    for _ in range(chance.choice([1, 1, 1, 3])):
        inside, key = chance.choice(list(places(tree)))
        match chance.randrange(6):
            case 0 if isinstance(inside, dict):
                inside[MARK] = inside.pop(key)
            case 1 if isinstance(inside, list):
                inside *= chance.choice([0, 2, 3])
            case _:
                inside[key] = MARK
        if not tree:
            break
    text = json.dumps(tree).split(json.dumps(MARK))
    return "".join(part + chance.choice(ODD) for part in text[:-1]).encode() + text[-1].encode()


def odd_records(raw: bytes, chance: random.Random) -> bytes:
    """A journal with the JSON of one record changed."""
    records = list(RecordScanner(raw))
    texts = {Type.SUBJECTS, Type.SCHEMA, Type.EVENT, Type.GRAPH, Type.NOTE}
    chosen = chance.choice([r for r in records if r.head.type in texts])
    assert chosen.payload is not None
    body = odd_json(bytes(chosen.payload), chance)
    end = chosen.offset + HEAD_BYTES + -(-chosen.head.length // 8) * 8
    return raw[: chosen.offset] + pack(chosen.head._replace(length=len(body)), body) + raw[end:]


def odd_footer(path: Path, chance: random.Random) -> tuple[bytes, bytes]:
    """A sealed file with other numbers in its footer, and a manifest that vouches for it."""
    told = manifest.decode(manifest_of(path).read_bytes())
    (entry,) = (e for e in told.files if path.as_posix().endswith(e.file))
    raw = path.read_bytes()

    def change(tree: Any) -> None:
        numbers = [(t, f) for t, f in _fields(tree) if t[f][0] in (5, 6)]
        inside, field = chance.choice(numbers)
        inside[field][1] = chance.choice([0, 1, -1, 2**31 - 1, 2**22, 2**40, 2**62, 77])

    forged, new = reforged(raw, entry, change)
    files = tuple(new if item is entry else item for item in told.files)
    told = manifest.Manifest(told.rank, told.attempt, True, told.journals, told.columns, {}, files)
    return forged, manifest.encode(told)


def odd_texts(path: Path, chance: random.Random) -> tuple[bytes, bytes]:
    """A sealed file with other JSON in a column of it, and a manifest that vouches for it."""
    table = pq.read_table(path)
    name = chance.choice([n for n in ("details", "placement", "data") if n in table.column_names])
    full = {"details": SUBJECT, "placement": PLACEMENT, "data": b'{"a": [1, {"b": 2}]}'}[name]
    texts = [odd_json(full, chance).decode() for _ in range(table.num_rows)]
    table = table.set_column(table.column_names.index(name), name, pa.array(texts))
    sink = pa.BufferOutputStream()
    own = pq.read_metadata(path).metadata[b"gradwatch"]
    options = {"store_schema": False, "write_page_checksum": True, "compression": "lz4"}
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"gradwatch": own})
    raw = sink.getvalue().to_pybytes()
    return raw, vouched(path, raw)


def _fields(tree: dict[int, list[Any]]) -> Iterator[tuple[dict[int, list[Any]], int]]:
    for field, (kind, value) in tree.items():
        yield tree, field
        for inner in [value] if kind == 12 else value[1] if kind == 9 else []:
            if isinstance(inner, dict):
                yield from _fields(inner)


def manifest_of(path: Path) -> Path:
    return next(p for p in (f / "manifest.json" for f in path.parents) if p.exists())


def mutant(small: small_run.SmallRun, number: int, chance: random.Random) -> dict[Path, bytes]:
    """The files that a mutant has in place of the sound ones."""
    kinds = small.kinds()
    path = chance.choice(sorted(small.path.rglob("*.parquet")))
    match number % 7:
        case 0:
            return {kinds["run.json"]: odd_json(kinds["run.json"].read_bytes(), chance)}
        case 1:
            odd = odd_json(kinds["manifest.json"].read_bytes(), chance)
            return {kinds["manifest.json"]: resigned(odd)}
        case 2:
            return {kinds["journal"]: odd_records(kinds["journal"].read_bytes(), chance)}
        case 3:
            return {kinds["journal"]: forged_journal(kinds["journal"].read_bytes(), chance)}
        case 4:
            raw, told = forged_parquet(path, chance)
            return {path: raw, kinds["manifest.json"]: told}
        case 5:
            path = chance.choice([kinds["subjects.parquet"], kinds["events"]])
            raw, told = odd_texts(path, chance)
            return {path: raw, kinds["manifest.json"]: told}
    raw, told = odd_footer(path, chance)
    return {path: raw, kinds["manifest.json"]: told}


def resigned(odd: bytes) -> bytes:
    """A manifest of this text with the right checksum, be it one or not."""
    body = odd.rsplit(b', "crc32"', 1)[0].removesuffix(b"}") + b", "
    return body + b'"crc32": "%08x"}\n' % zlib.crc32(body)


def touch(run: Run) -> object:
    """A few reads of every kind."""
    for stat in ("grad_norm", "grad_sketch", "grad_count"):
        run.series[stat], run.state(stat)
    run.integers("grad_count")
    for name in run.names:
        run.histograms("grad", name).items()
    run.window(points=1).stat("grad_norm")
    return run.layers, run.graph, run.events, dict(run.info), dict(run.scalars), repr(run)


def trial(folder: Path, count: int, seed: int) -> Iterator[tuple[int, float]]:
    """Every mutant opened and read; what each took."""
    small = small_run.make(folder / "run")
    chance = random.Random(seed)
    for number in range(count):
        files = mutant(small, number, chance)
        kept = {path: path.read_bytes() for path in files}
        for path, raw in files.items():
            path.write_bytes(raw)
        begun = time.process_time()
        with contextlib.suppress(GradwatchError):
            touch(open_run(small.path))
        assert len(list_runs(folder)) == 1
        yield number, time.process_time() - begun
        for path, raw in kept.items():
            path.write_bytes(raw)


def test_mutants_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    for number, seconds in trial(tmp_path, QUICK, 6):
        assert seconds < SECONDS, number


def confined(folder: Path, seed: int) -> None:
    """In a process of its own, with little memory beyond what the first mutants have loaded."""
    mutants = trial(folder, MANY, seed)
    for _ in range(WARM):
        next(mutants)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    slowest = max(seconds for _, seconds in mutants)
    assert slowest < SECONDS, slowest


@pytest.mark.security
@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_mutants_in_little_memory(tmp_path: Path, seed: int) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "from pathlib import Path\n"
        "from tests.store.test_reader_mutants import confined\n"
        "confined(Path(sys.argv[1]), int(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(seed), *sys.path],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},  # others reserve more
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
