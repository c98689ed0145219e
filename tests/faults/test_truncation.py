"""A small run cut at every byte: what is whole is there, nothing is wrong, what is not is told."""

import zlib
from pathlib import Path

import pytest
from tests.faults import small_run
from tests.faults.tally import WHOLE, Tally

from gradwatch.stats import State
from gradwatch.store import open_run
from gradwatch.store.format import HEAD_BYTES, Type, padded, unpack_head

SEALED = (
    "rows/grad",
    "sketches/grad",
    "histograms/grad",
    "rollups/grad-10",
    "rollups/grad-100",
    "rollups/grad-1000",
    "scalars",
    "events",
    "subjects.parquet",
    "graph.json",
)
ENDS = 60
"""Every byte at both ends of a long file is cut; between them there are some cuts."""


def cuts(size: int, most: int = 2000 if WHOLE else 40) -> list[int]:
    inside = range(ENDS, size - ENDS, max(1, (size - 2 * ENDS) // most))
    return sorted({*range(min(ENDS, size)), *inside, *range(max(0, size - ENDS), size)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> small_run.SmallRun:
    small = small_run.make(tmp_path_factory.mktemp("truncation") / "run")
    run = open_run(small.path)
    assert not small.missing(run)
    assert not small.wrong(run)
    assert not small_run.damaged(run)
    assert run.info["complete"]
    assert {*SEALED, "run.json", "manifest.json", "journal"} == set(small.kinds())
    return small


class Cut:
    """A file that is cut shorter and shorter, and is whole again at the end."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally, self.data = path, tally, path.read_bytes()

    def each(self, sizes: list[int]):
        try:
            for size in sizes:
                self.tally.counted += 1
                self.path.write_bytes(self.data[:size])
                self.tally.fired += self.path.stat().st_size == size
                yield self.data[:size]
        finally:
            self.path.write_bytes(self.data)


@pytest.mark.parametrize("kind", SEALED)
def test_sealed_files(whole, capsys, kind):
    """A file that is not as long as the manifest says is never read: it is enough to open."""
    tally = Tally(f"truncations of {kind}")
    path = whole.kinds()[kind]
    name = path.relative_to(whole.folder).as_posix()
    for number, left in enumerate(Cut(path, tally).each(cuts(path.stat().st_size))):
        run = open_run(whole.path)
        problems = small_run.damaged(run)
        if len(problems) != 1 or name not in problems[0] or run.info["complete"]:
            tally.fail(f"{name} cut at {len(left)}: {problems}, {run.info['complete']}")
        if number % 40 == 0:
            for problem in whole.wrong(run):
                tally.fail(f"{name} cut at {len(left)}: {problem}")
    tally.settle(capsys, min(2 * ENDS, path.stat().st_size))


@pytest.mark.parametrize("kind", ["rows/grad", "scalars", "subjects.parquet"])
def test_sealed_files_without_a_manifest(whole, capsys, kind):
    """Then the files themselves are all there is: their footers are looked at."""
    tally = Tally(f"truncations of {kind} without a manifest")
    manifest, path = whole.kinds()["manifest.json"], whole.kinds()[kind]
    kept = manifest.read_bytes()
    manifest.unlink()
    try:
        for left in Cut(path, tally).each(cuts(path.stat().st_size, 30)[1::4]):
            try:
                run = open_run(whole.path)
                problems = whole.problems(run)
                if run.info["complete"]:
                    problems.append("it says that it is complete")
            except Exception as error:
                problems = [repr(error)]
            for problem in problems:
                tally.fail(f"{path.name} cut at {len(left)}: {problem}")
    finally:
        manifest.write_bytes(kept)
    tally.settle(capsys, 30)


@pytest.mark.parametrize("kind", ["run.json", "journal", "manifest.json"])
def test_files_that_are_read_at_once(whole, capsys, kind):
    tally = Tally(f"truncations of {kind}")
    path = whole.kinds()[kind]
    size = path.stat().st_size
    sizes = list(range(0, size, 1 if WHOLE else 11)) if kind == "journal" else cuts(size)
    for number, left in enumerate(Cut(path, tally).each(sizes)):
        try:
            problems = problems_of(whole, kind, left, deep=kind == "run.json" or number % 25 == 0)
        except Exception as error:
            problems = [repr(error)]
        for problem in problems:
            tally.fail(f"{path.name} cut at {len(left)}: {problem}")
    tally.settle(capsys, min(size, 2 * ENDS))


def problems_of(small: small_run.SmallRun, kind: str, left: bytes, deep: bool) -> list[str]:
    run = open_run(small.path)
    problems = small.problems(run) if deep else small.wrong_numbers(run)
    if kind == "journal":
        rows = run.state("grad_norm")
        there = set(run.steps[(rows == State.MEASURED).all(axis=1)].tolist())
        if not whole_steps(left) <= there:
            problems.append("a whole record before the cut is missing")
        if run.info["complete"] != (b"flushed" in left and left.rstrip(b"\0").endswith(b"}")):
            problems.append("it says that it is complete")
    if kind == "run.json" and small.missing(run):
        problems.append("a broken run.json hides data")
    if kind == "manifest.json" and (run.info["complete"] or not small_run.damaged(run)):
        problems.append("a broken manifest is not told")
    return problems


def whole_steps(data: bytes) -> set[int]:
    """Steps whose records lie wholly in these bytes of a journal, found without the reader."""
    at, found = 0, set()
    while at + HEAD_BYTES <= len(data):
        head, checksum = unpack_head(data[at : at + HEAD_BYTES])
        payload = data[at + HEAD_BYTES : at + HEAD_BYTES + head.length]
        if len(payload) < head.length:
            break
        assert zlib.crc32(payload) == checksum
        if head.type == Type.STEP:
            found.add(head.step)
        at += HEAD_BYTES + padded(head.length)
    return found
