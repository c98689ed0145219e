"""A small run cut at every byte: what is whole is there, nothing is wrong, what is not is told."""

import shutil
from pathlib import Path

import pytest
from tests.faults import small_run
from tests.faults.tally import WHOLE, Tally

from gradwatch.stats import State
from gradwatch.store import open_run

ENDS = 40 if WHOLE else 12
"""Every byte at both ends of a file is cut; between them there are some cuts."""


def cuts(size: int, most: int = 200 if WHOLE else 15) -> list[int]:
    inside = range(ENDS, size - ENDS, max(1, (size - 2 * ENDS) // most))
    return sorted({*range(min(ENDS, size)), *inside, *range(max(0, size - ENDS), size)})


@pytest.fixture(scope="module", params=small_run.ENDINGS)
def whole(request, tmp_path_factory: pytest.TempPathFactory) -> small_run.SmallRun:
    return small_run.make(tmp_path_factory.mktemp("truncation") / "run", request.param)


def growing(path: Path, small: small_run.SmallRun) -> bool:
    """Whether nobody can tell a cut of this file from a kill."""
    return small.ending == "killed" and path.suffix in (".arrows", ".jsonl")


def test_every_file(whole, capsys):
    """A file that is not as long as the log says is never read; a growing one up to the cut."""
    tally = Tally(f"truncations, {whole.ending}")
    for path in whole.files():
        data, name = path.read_bytes(), path.relative_to(whole.folder).as_posix()
        for size in cuts(len(data)):
            tally.counted += 1
            path.write_bytes(data[:size])
            tally.fired += path.stat().st_size == size
            try:
                problems = whole.problems(cut=growing(path, whole) or path.suffix == ".jsonl")
                run = whole.run()
                texts = small_run.damage(run)
                # that the log ends with what was finished at last only adds sizes
                short = path.suffix == ".jsonl" and data[:size].count(b'"closed"')
                if run.info["complete"] and not short:
                    problems.append("it says that it is complete")
                named = any(name.partition("-")[0] in text for text in texts)
                if path.suffix != ".jsonl" and whole.ending != "killed" and not named:
                    problems.append(f"{texts} do not name it")
            except Exception as error:
                problems = [repr(error)]
            for problem in problems:
                tally.fail(f"{name} of {len(data)} bytes cut at {size}: {problem}")
        path.write_bytes(data)
    tally.settle(capsys, 1000 if WHOLE else 100)


def test_a_growing_part_is_read_up_to_the_cut(tmp_path, capsys):
    """Each batch that is whole is there, as `flush` has promised."""
    small, tally = small_run.make(tmp_path / "run", "killed"), Tally("cuts of growing rows")
    (path,) = small.folder.glob("rows/grad/*.arrows")
    data = path.read_bytes()
    first_step = int(path.stem.partition("-")[2])
    begins, at = [], data.index(b"\xff\xff\xff\xff", 8)
    prefix = data[at : at + 8]
    while at >= 0:
        begins.append(at)
        at = data.find(prefix, at + 1)
    assert len(begins) == small_run.STEPS - first_step
    for size in cuts(len(data)):
        tally.counted += 1
        path.write_bytes(data[:size])
        tally.fired += 1
        run = small.run()
        there = run.steps[(run.state("grad_norm") == State.MEASURED).all(axis=1)]
        steps = first_step + sum(end <= size for end in [*begins[1:], len(data)])
        if there.tolist() != list(range(steps)) or small.wrong_norms(run):
            tally.fail(f"cut at {size}: steps {there.tolist()} instead of {steps}")
        if not any("rows/grad" in text for text in small_run.damage(run)):
            tally.fail(f"cut at {size}: {small_run.damage(run)}")
    tally.settle(capsys, 20)


@pytest.mark.parametrize("size", [None, 0, 1, 40, 150])
def test_run_json(whole, tmp_path, size):
    """It has the name and the time of the beginning: without it everything else is there."""
    shutil.copytree(whole.path, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    run = open_run(tmp_path / "run")
    assert not whole.missing(run)
    assert not whole.wrong(run)
