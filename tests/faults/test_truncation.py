"""A small run cut at every byte: whole records before the cut are there, none is wrong."""

import pytest
from tests.faults import small_run
from tests.faults.tally import Tally

from gradwatch.run import EventKind
from gradwatch.stats import State
from gradwatch.store import open_run
from gradwatch.store.format import HEAD_BYTES, Type, padded, unpack_head


def whole_steps(data: bytes) -> set[int]:
    """Steps whose records lie wholly in these bytes of a journal, found without the reader."""
    at, found = 0, set()
    while at + HEAD_BYTES <= len(data):
        head, _ = unpack_head(data[at : at + HEAD_BYTES])
        if at + HEAD_BYTES + head.length > len(data):
            break
        if head.type == Type.STEP:
            found.add(head.step)
        at += HEAD_BYTES + padded(head.length)
    return found


@pytest.mark.parametrize("kind", ["run.json", "s", "x", "j", "a"])
def test_every_cut(tmp_path, capsys, kind):
    small = small_run.make(tmp_path / "run")
    whole = open_run(small.path)
    assert small.missing(whole) == 0
    assert not small.wrong(whole)
    assert not [event for event in whole.events if event.kind is EventKind.DAMAGE]
    tally = Tally(f"truncations of {kind}")
    path = next(path for path in sorted(small.path.rglob(f"{kind}*")) if path.is_file())
    data = path.read_bytes()
    for size in range(len(data)):
        tally.counted += 1
        path.write_bytes(data[:size])
        tally.fired += path.stat().st_size == size
        try:
            problems = problems_of(small, kind, data[:size])
        except Exception as error:
            problems = [repr(error)]
        for problem in problems:
            tally.fail(f"{path.name} cut at {size}: {problem}")
    tally.settle(capsys, len(data))


def problems_of(small: small_run.SmallRun, kind: str, left: bytes) -> list[str]:
    run = open_run(small.path)
    problems = small.wrong(run)
    if small.missing(run) and not small.told(run):
        problems.append("values are missing and nothing says so")
    if kind == "j":
        rows = run.state("update_norm")
        there = set(run.steps[(rows == State.MEASURED).all(axis=1)].tolist())
        if not whole_steps(left) <= there:
            problems.append("a whole record before the cut is missing")
    if kind == "run.json" and small.missing(run):
        problems.append("a broken run.json hides data")
    return problems
