"""Small run folders that claim much: a sentence, at little cost, and what is honest is read."""

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.store import hostile
from tests.store.hostile import HOSTILE
from tests.store.trial import Trial

from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.store import budget, follow, open_run
from gradwatch.store.budget import Budget

GIB = 1 << 30
SECONDS, BYTES_PER_SECOND = 20.0, 200_000_000


def read_all(run: Run) -> None:
    """What the commands read, and more."""
    assert len(run.steps) >= 0
    assert (run.subjects, run.layers, run.events, run.info, run.graph) is not None
    for name in run.scalars:
        run.scalars[name].sum()
    for stat in run.series:
        run.series[stat].shape, run.state(stat).shape
    for name in run.names[:3]:
        run.histograms("grad", name).items()


# -- of few samples of many steps ------------------------------------------------------------------


def test_few_samples_of_many_steps_are_read_but_no_table_of_all_steps_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path / "run").steps(range(40))
    run = open_run(trial.close())
    assert run.at(Stat.WEIGHT_NORM, run.sampled(Stat.WEIGHT_NORM)).shape == (10, 4)
    monkeypatch.setattr(budget, "CELLS", 100)
    monkeypatch.setattr(budget, "CELLS_PER_BYTE", 0)
    with pytest.raises(GradwatchError, match="at most 100 cells"):
        run.series[Stat.WEIGHT_NORM].sum()
    assert run.sampled(Stat.WEIGHT_NAN).size == 10
    with pytest.raises(GradwatchError, match="at most 100 cells"):
        run.sampled(Stat.GRAD_NORM)  # of all steps


# -- refused ---------------------------------------------------------------------------------------

QUICK: dict[str, Callable[[Path], None]] = {
    "sparse rows": hostile.sparse_rows,
    "steps of a manifest": hostile.claimed_steps,
    "scalars": hostile.many_scalars,
    "events": partial(hostile.many_events, files=1, count=1 << 19),
    "histograms": partial(hostile.packed_histograms, files=2, rows=1 << 13),
    "a journal of a hole": hostile.sparse_journal,
    "subjects of records": partial(hostile.far_records, records=4000),
}


@pytest.mark.parametrize("name", QUICK)
def test_a_small_run_that_claims_much_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    QUICK[name](tmp_path / "run")
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(GradwatchError, match=r"^Expected at most .* but it claims .*\d") as caught:
        read_all(open_run(tmp_path / "run"))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert len(str(caught.value)) < 300
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    assert after.ru_maxrss - before.ru_maxrss < 300_000


def test_a_name_that_is_longer_than_any_is_lost(tmp_path: Path) -> None:
    hostile.long_name(tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.names == ("(name lost: parameter 0)",)
    assert "a name of 5000000 letters" in run.events[0].text


def test_losses_are_told_one_by_one_up_to_a_thousand(tmp_path: Path) -> None:
    hostile.many_files(tmp_path / "run", 3000)
    events = open_run(tmp_path / "run").events
    assert len(events) == 1001
    assert any("2000 more losses" in event.text for event in events)


def test_a_series_of_too_many_pieces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "PIECES", 0)
    hostile.far_records(tmp_path / "run", records=80)
    with pytest.raises(GradwatchError, match="80 pieces of one series"):
        read_all(open_run(tmp_path / "run"))


def test_ranks_together_have_one_budget(tmp_path: Path) -> None:
    hostile.ranks_with_rows(tmp_path / "run", ranks=80)
    (first, *_) = sorted((tmp_path / "run").iterdir())
    (tmp_path / "alone").mkdir()
    first.rename(tmp_path / "alone" / first.name)
    read_all(open_run(tmp_path / "alone"))
    with pytest.raises(GradwatchError, match="it claims 262,144 steps"):
        read_all(open_run(tmp_path / "run"))


# -- not refused -----------------------------------------------------------------------------------


def test_a_budget_counts_each_thing_once_and_grows_with_what_is_stored() -> None:
    spent = Budget()
    for _ in range(100):
        spent.keep("steps", budget.MEMORY, "steps")
    with pytest.raises(GradwatchError, match=r"at most 268\.4 MB of a run of 0\.0 MB"):
        spent.keep("more", 1, "one more")
    spent.store("folder", 1)
    spent.keep("more", budget.PER_BYTE, "one more")
    spent.table(budget.CELLS, 1, "steps")
    with pytest.raises(GradwatchError, match=r"8,388,609 steps × 1, which takes 8,388,609 cells"):
        spent.table(budget.CELLS + 1, 1, "steps")
    spent.store("folder", budget.CELLS)
    spent.table(2 * budget.CELLS, 1, "steps")


def test_the_holes_of_a_file_are_not_stored(tmp_path: Path) -> None:
    hostile.sparse_journal(tmp_path / "run", 1 << 26)
    follower = follow(tmp_path / "run")
    follower.refresh()
    assert follower.budget.stored < 1 << 16


def test_an_honest_run_is_within_its_budget_many_times(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", tensors=8).steps(range(100))
    follower = follow(trial.path)
    for _ in range(3):
        read_all(follower.refresh())
    kept = follower.budget.kept
    read_all(follower.refresh())
    assert follower.budget.kept == kept < budget.MEMORY // 10
    trial.close()
    assert follower.budget.stored > 100 * 8  # a cell per byte: half of what may be


def test_series_that_find_no_room_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(Trial(tmp_path / "run").steps(range(20)).close())
    first, again = run.series["grad_norm"], run.series["grad_norm"]
    assert first is again
    monkeypatch.setattr(Budget, "room", 1)
    assert run.series["grad_mean"] is run.series["grad_mean"]  # the last one is always held
    assert run.series["grad_norm"] is not first
    assert np.array_equal(run.series["grad_norm"], first, equal_nan=True)


# -- every command, at full size -------------------------------------------------------------------

READ = (
    "import sys, gradwatch\nsys.path[:0] = sys.argv[2:]\n"
    "from tests.store.test_budget import read_all\n"
    "try: read_all(gradwatch.open_run(sys.argv[1]))\n"
    "except gradwatch.GradwatchError as error: sys.exit(3)\n"
)


def commands(run: str, folder: Path) -> dict[str, Sequence[str]]:
    own = ("-m", "gradwatch")
    return {
        "read": ("-c", READ, run, *sys.path),
        "show": (*own, "show", run),
        "diagnose": (*own, "diagnose", run),
        "report": (*own, "report", run, "-o", str(folder / "out.html"), "--force"),
        "export": (*own, "export", run, "-o", str(folder / "out.csv"), "--force"),
        "analyze": (*own, "analyze", run),
        "animate": (*own, "animate", run, "-o", str(folder / "out.gif"), "--force"),
        "runs": (*own, "runs", run),
    }


MEASURED = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *sys.argv[1:]])
_, status, used = os.wait4(pid, 0)
print()
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""A small process between: what a process took at most begins with what its parent has."""


@pytest.mark.security
@pytest.mark.parametrize("name", HOSTILE)
def test_every_command_stays_within_the_budget(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    HOSTILE[name](run)
    files = [path.stat() for path in run.rglob("*") if path.is_file()]
    stored = sum(min(facts.st_size, 512 * facts.st_blocks) for facts in files)
    for command, words in commands(str(run), tmp_path).items():
        with (tmp_path / "said").open("w+b") as said:
            line = [sys.executable, "-c", MEASURED, *words]
            figures = subprocess.run(line, stdout=subprocess.PIPE, stderr=said, check=True).stdout
            code, seconds, kilobytes = map(float, figures.splitlines()[-1].split())
            said.seek(0)
            text = said.read().decode() + figures.decode()
        assert code in (0, 1, 3), (command, text[-500:])
        assert "Traceback" not in text
        assert "a fault of gradwatch" not in text, (command, text[-500:])
        assert seconds < SECONDS + stored / BYTES_PER_SECOND, command
        assert 1024 * kilobytes < GIB, command
