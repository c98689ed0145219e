"""Bits flipped, pieces moved, deleted, inserted: no exception, no wrong value, and it is told."""

import random
import resource
import struct
import zlib

from tests.faults import small_run
from tests.faults.tally import Tally

from gradwatch.errors import GradwatchError
from gradwatch.store import open_run
from gradwatch.store.format import HEAD_BYTES, padded, unpack_head

MUTANTS = 2100
HOSTILE = 600


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


def forged(data: bytes, chance: random.Random) -> bytes:
    """One record changed with its checksums made right again: only limits can help here."""
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


def touch_everything(run):
    for stat in run.series:
        run.series[stat], run.state(stat), run.integers(stat)
    for name in run.names:
        run.histograms("update", name)
    run.window(points=10).stat("update_norm")
    return run.layers, run.graph, run.events, dict(run.info), dict(run.scalars)


def test_damaged_runs_are_read_as_far_as_they_are_sound(tmp_path, capsys):
    small = small_run.make(tmp_path / "run")
    files = sorted(path for path in small.path.rglob("*.gw?"))
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
            run = open_run(small.path)
            problems = small.wrong(run)
            if small.missing(run) and not small.told(run):
                problems.append("values are missing and nothing says so")
            touch_everything(run)
        except Exception as error:
            problems = [repr(error)]
        for problem in problems:
            tally.fail(f"mutant {tally.counted} of {path.name}: {problem}")
        path.write_bytes(data)
    tally.settle(capsys, 2000)


def test_forged_runs_do_no_harm(tmp_path, capsys):
    small = small_run.make(tmp_path / "run")
    files = sorted(path for path in small.path.rglob("*.gw?"))
    tally, chance = Tally("forged runs"), random.Random(12)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while tally.counted < HOSTILE:
        path = chance.choice(files)
        data = path.read_bytes()
        damaged = forged(data, chance)
        if damaged == data:
            continue
        tally.counted += 1
        path.write_bytes(damaged)
        tally.fired += path.read_bytes() != data
        try:
            touch_everything(open_run(small.path))
        except GradwatchError:
            pass  # a sentence is a fair answer to a forgery
        except Exception as error:
            tally.fail(f"forgery {tally.counted} of {path.name}: {error!r}")
        path.write_bytes(data)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400_000, f"memory grew by {grown} kB"
    tally.settle(capsys, 500)
