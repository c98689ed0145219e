"""Bits flipped, pieces moved, deleted, inserted: no exception, no wrong value, and it is told."""

import json
import random
import re
import resource
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.faults import small_run
from tests.faults.tally import WHOLE, Tally

from gradwatch.errors import GradwatchError
from gradwatch.store import manifest, open_run
from gradwatch.store.format import HEAD_BYTES, padded, unpack_head

MUTANTS = 2100 if WHOLE else 300
HOSTILE = 600 if WHOLE else 120


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one kind of damage."""
    raw, size = bytearray(data), len(data)
    a, b = sorted(chance.randrange(size) for _ in range(2))
    match chance.randrange(7):
        case 0 | 1:
            for _ in range(chance.choice([1, 1, 2, 16])):
                raw[chance.randrange(size)] ^= 1 << chance.randrange(8)
        case 2:
            raw[a:b] = b""
        case 3:
            raw[a:a] = raw[b : b + chance.randrange(1, 200)]
        case 4:
            raw[a : a + 64] = bytes(64)
        case 5:
            length = chance.randrange(1, 300)
            raw[a : a + length], raw[b : b + length] = raw[b : b + length], raw[a : a + length]
        case 6:
            raw[a:a] = chance.randbytes(chance.randrange(1, 100))
    return bytes(raw)


# -- forgeries: changed, with the checksums made right again: only limits can help here ------------


def forged_journal(data: bytes, chance: random.Random) -> bytes:
    """One record changed."""
    offsets, at = [], 0
    while at + HEAD_BYTES <= len(data) and (parsed := unpack_head(data[at : at + HEAD_BYTES])):
        offsets.append((at, parsed[0].length))
        at += HEAD_BYTES + padded(parsed[0].length)
    at, length = chance.choice(offsets)
    raw = bytearray(data)
    if chance.random() < 0.4:
        place = at + chance.choice([4, 5, 6, 7, 8, 16, 24, 28])
        wide = chance.choice([1, 4])
        value = chance.choice([0, 1, 255, 2**31, 2**32 - 1, chance.randrange(2**32)])
        raw[place : place + wide] = struct.pack("<I", value)[:wide]
    elif length:
        for _ in range(chance.choice([1, 2, 8])):
            place = at + HEAD_BYTES + chance.randrange(length)
            raw[place] = chance.choice([0, 1, 127, 128, 255, raw[place] ^ 1 << chance.randrange(8)])
    body = bytes(raw[at + HEAD_BYTES : at + HEAD_BYTES + length])
    raw[at + 32 : at + 36] = struct.pack("<I", zlib.crc32(body))
    raw[at + 36 : at + 40] = struct.pack("<I", zlib.crc32(bytes(raw[at : at + 36])))
    return bytes(raw)


NUMBERS = (0, 1, -1, 2, 99, 2**31, 2**53, 2**62, -(2**63), 10**30, 0.5, "7", None, [], {}, True)


def signed(data: dict) -> bytes:
    """A manifest of these members that has the right checksum."""
    body = {key: value for key, value in data.items() if key != "crc32"}
    raw = json.dumps(body)[:-1].encode() + b", "
    return raw + b'"crc32": "%08x"}\n' % zlib.crc32(raw)


def forged_manifest(data: bytes, chance: random.Random) -> bytes:
    """Other numbers, steps, files, records, columns or notes."""
    told = json.loads(data)
    file = chance.choice(told["files"])
    match chance.randrange(9):
        case 0:
            file[chance.choice(["bytes", "rows", "footer", "steps"])] = chance.choice(NUMBERS)
        case 1:
            file["steps"] = [[chance.choice(NUMBERS) for _ in range(3)] for _ in range(2)]
        case 2:
            file["steps"] = [[0, 1, 2**27]] * chance.choice([1, 2, 50])
        case 3:
            file["file"] = chance.choice(
                ["../x", "/etc/passwd", "rows/grad/99999.parquet", "rows/grad/a\0b", "", "x" * 5000]
            )
        case 4:
            other = chance.choice(told["files"])
            file["file"], other["file"] = other["file"], file["file"]
        case 5:
            told[chance.choice(list(told))] = chance.choice(NUMBERS)
        case 6:
            told["journals"] = [[chance.choice(NUMBERS) for _ in range(4)] for _ in range(3)]
        case 7:
            told["columns"] = {chance.choice(["grad", "act", "x"]): ["grad_norm", "weight_hash"]}
        case 8:
            told["files"] += [file] * 3
            file["checksums"] = chance.choice(["", "00", "zz", file["checksums"][8:], 5])
    return signed(told)


def forged_parquet(path: Path, chance: random.Random) -> tuple[bytes, bytes]:
    """A sealed file of another schema or other rows, and a manifest that vouches for it."""
    table = pq.read_table(path)
    facts = pq.read_metadata(path).metadata[b"gradwatch"].decode()
    at = chance.randrange(table.num_columns)
    field = table.schema.field(at)
    odd = [
        pa.array(["text"] * table.num_rows),
        pa.array([None] * table.num_rows, pa.float64()),
        pa.array([[1.0, 2.0]] * table.num_rows),
        pa.array([True] * table.num_rows),
        pa.array([-(2**63)] * table.num_rows),
        pa.array([1e308] * table.num_rows),
        pa.array([b"\xff"] * table.num_rows),
        pa.array([{"a": 1}] * table.num_rows),
    ]
    match chance.randrange(4):
        case 0 | 1:
            table = table.set_column(at, field.name, chance.choice(odd))
        case 2:
            table = table.remove_column(at)
        case 3:
            table = pa.concat_tables([table, table])
    if chance.random() < 0.3:
        facts = re.sub(r"\d+", str(chance.choice([0, 1, 7, 2**40])), facts, count=1)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"gradwatch": facts})
    raw = sink.getvalue().to_pybytes()
    return raw, vouched(path, raw)


def vouched(path: Path, raw: bytes) -> bytes:
    """The manifest with the size, rows and checksums of this file."""
    folder = next(parent for parent in path.parents if (parent / "manifest.json").exists())
    told = json.loads((folder / "manifest.json").read_bytes())
    name = path.relative_to(folder).as_posix()
    (entry,) = (file for file in told["files"] if file["file"] == name)
    metadata = pq.read_metadata(pa.BufferReader(raw))
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    sums = [zlib.crc32(raw[-footer:])]
    for at in range(metadata.num_columns):
        column = metadata.row_group(0).column(at)
        begin = column.data_page_offset
        if column.has_dictionary_page:
            begin = min(begin, column.dictionary_page_offset)
        sums.append(zlib.crc32(raw[begin : begin + column.total_compressed_size]))
    entry |= {"bytes": len(raw), "rows": metadata.num_rows, "footer": footer}
    entry["checksums"] = "".join(f"{number:08x}" for number in sums)
    forged = signed(told)
    manifest.decode(forged)  # else it would test nothing
    return forged


def touch_everything(run) -> object:
    for stat in run.series:
        run.series[stat], run.state(stat), run.integers(stat)
    for name in run.names:
        run.histograms("grad", name).items()
    run.window(points=1).stat("grad_norm")
    return run.layers, run.graph, run.events, dict(run.info), dict(run.scalars)


# -- tests -----------------------------------------------------------------------------------------


def test_damaged_runs_are_read_as_far_as_they_are_sound(tmp_path, capsys):
    small = small_run.make(tmp_path / "run")
    files = sorted(path for path in small.path.rglob("*") if path.is_file())
    tally, chance = Tally("flipped and spliced runs"), random.Random(11)
    while tally.counted < MUTANTS:
        path = chance.choice(files)
        data = path.read_bytes()
        damaged = mutated(data, chance)
        if damaged == data:
            continue
        tally.counted += 1
        path.write_bytes(damaged)
        tally.fired += path.read_bytes() != data
        try:
            problems = small.problems(open_run(small.path))
        except GradwatchError as error:  # a `run.json` that says it is of another format
            problems = [] if path.name == "run.json" else [repr(error)]
        except Exception as error:
            problems = [repr(error)]
        for problem in problems:
            tally.fail(f"mutant {tally.counted} of {path.name}: {problem}")
        path.write_bytes(data)
    tally.settle(capsys, MUTANTS)


def test_forged_runs_do_no_harm(tmp_path, capsys):
    small = small_run.make(tmp_path / "run")
    kinds = small.kinds()
    sealed = sorted(small.path.rglob("*.parquet"))
    tally, chance = Tally("forged runs"), random.Random(12)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while tally.counted < HOSTILE:
        tally.counted += 1
        kind = ("journal", "manifest.json", "parquet")[tally.counted % 3]
        path = chance.choice(sealed) if kind == "parquet" else kinds[kind]
        kept = {file: file.read_bytes() for file in (path, kinds["manifest.json"])}
        data = kept[path]
        if kind == "parquet":
            forged, told = forged_parquet(path, chance)
            kinds["manifest.json"].write_bytes(told)
        elif kind == "journal":
            forged = forged_journal(data, chance)
        else:
            forged = forged_manifest(data, chance)
        path.write_bytes(forged)
        tally.fired += forged != data  # one may change nothing
        tally.counted -= forged == data
        try:
            touch_everything(open_run(small.path))
        except GradwatchError:
            pass  # a sentence is a fair answer to a forgery
        except Exception as error:
            tally.fail(f"forgery {tally.counted} of {path.name}: {error!r}")
        for file, whole in kept.items():
            file.write_bytes(whole)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400_000, f"memory grew by {grown} kB"
    tally.settle(capsys, HOSTILE)
