"""Bits flipped, pieces moved, deleted, inserted: no exception, no wrong value, and it is told."""

import random
from pathlib import Path

import pytest
from tests.faults import small_run
from tests.faults.tally import WHOLE, Tally

from gradwatch.errors import GradwatchError

MUTANTS = 2100 if WHOLE else 250


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


def told(path: Path) -> int:
    """How many bytes of a file are followed by something that shows that they are damaged.

    The last batch of a part that grew and the last line of a log may have been cut by a kill. What
    Parquet says of its rows has no checksum: steps that are lost so are not told after a kill.
    """
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return data.rindex(b"\n", 0, -1)
    if path.suffix == ".arrows":
        begin = data.index(b"\xff\xff\xff\xff", 8)
        return data.rindex(data[begin : begin + 8])
    return len(data)


@pytest.mark.parametrize("ending", small_run.ENDINGS)
def test_damaged_runs_are_read_as_far_as_they_are_sound(tmp_path, capsys, ending):
    small = small_run.make(tmp_path / "run", ending)
    files = [*small.files(), small.path / "run.json"]
    tally, chance = Tally(f"flipped and spliced runs, {ending}"), random.Random(11)
    while tally.counted < MUTANTS:
        path = chance.choice(files)
        data = path.read_bytes()
        sure = told(path)
        damaged = mutated(data[:sure], chance) + data[sure:]
        if damaged == data:
            continue
        tally.counted += 1
        path.write_bytes(damaged)
        tally.fired += path.read_bytes() != data
        try:
            problems = small.problems(cut=ending == "killed" and path.parent.name == "steps")
        except GradwatchError as error:  # a `run.json` that says it is of another format
            problems = [] if path.name == "run.json" else [repr(error)]
        except Exception as error:
            problems = [repr(error)]
        for problem in problems:
            tally.fail(f"mutant {tally.counted} of {path.parent.name}/{path.name}: {problem}")
        path.write_bytes(data)
    tally.settle(capsys, MUTANTS)
