"""`keep=`: a folder stays small, its extremes stay, and the verdict is the same."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.store.trial import VALUED, Trial, finishing_at, kept

import gradwatch
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import EventKind, Histogram, Run
from gradwatch.run.subject import HistogramTable
from gradwatch.stats import Family, Stat, State
from gradwatch.store import Retention, open_run, tables
from gradwatch.store import writer as writer_thread
from gradwatch.store.places import Place
from gradwatch.store.retention import prunable, prune, retention

# -- what may be asked for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("all", None),
        ("1MB", Retention(bytes=10**6)),
        ("500MB", Retention(bytes=500 * 10**6)),
        ("1.5 gb", Retention(bytes=15 * 10**8)),
        ("2TB", Retention(bytes=2 * 10**12)),
        ("5000kB", Retention(bytes=5 * 10**6)),
        ("7d", Retention(seconds=7 * 86400.0)),
        ("12h", Retention(seconds=12 * 3600.0)),
        ("0.5d", Retention(seconds=43200.0)),
    ],
)
def test_sizes_and_ages_are_understood(given: str, meant: Retention | None) -> None:
    assert retention(given) == meant


@pytest.mark.parametrize(
    "given",
    [
        *("lots", "-1GB", "", "0d", "1KB", "999kB", "1B", "GB", "1e3MB", "7 days", "1GB\n", "٣GB"),
        *("9" * 400 + "GB", 7.5, None, True, b"1GB", ["1GB"], np.array(["all"])),
    ],
)
def test_everything_else_is_refused(given: Any) -> None:
    with pytest.raises(GradwatchError, match="`keep` must be 'all', a size from 1MB up") as caught:
        retention(given)
    assert caught.value.exit_code == Exit.USAGE


# -- what goes and what stays ----------------------------------------------------------------------


def size_of(path: Path) -> int:
    return sum(Place.of(path).files().values())


def events(run: Run, kind: EventKind) -> list[str]:
    return [event.text for event in run.events if event.kind is kind]


def removed_before(run: Run) -> int:
    """The step from which on every row is there."""
    (step,) = [event.step for event in run.events if event.kind is EventKind.RETENTION]
    return step


def check_extremes(trial: Trial, run: Run, family: Family = Family.GRAD) -> None:
    """Of 64 rows of a subject that are gone, the extreme and the last are still shown."""
    steps = sorted(step for own, step in trial.truth if own is family)
    before = removed_before(run)
    for stat in (s for s in run.recorded if s.family is family and s is not Stat.WEIGHT_HASH):
        true = np.array([kept(trial.truth[family, step][0][stat]) for step in steps])
        states = np.array([trial.truth[family, step][1] for step in steps])
        true = np.where(np.isin(states, VALUED) & np.isfinite(true), true, np.nan)
        true = true.astype(np.float32).astype(float)
        true[np.isinf(true)] = np.nan
        got = run.series[stat][np.searchsorted(run.steps, steps)].astype(np.float32)
        old = np.array(steps) < before
        for column in range(true.shape[1]):
            shown = got[old, column][np.isfinite(got[old, column])]
            assert np.isin(shown, true[:, column].astype(np.float32)).all(), stat
            largest = np.nanmax(abs(true[old, column]))
            assert np.nanmax(abs(shown)) == largest, (stat, column)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A finished run of many parts."""
    with finishing_at(20_000):
        trial = Trial(tmp_path_factory.mktemp("long") / "run", tensors=3)
        bins = np.ones(3, np.uint64)
        for begin in range(0, 900, 30):
            trial.steps(range(begin, begin + 30), 30)
            table = HistogramTable.of([Histogram(-2, bins, bins)])
            trial.writer.histogram_table(Family.GRAD, begin, trial.ids[:1], table)
        trial.close()
    return trial


def test_by_size(tmp_path: Path, long: Trial) -> None:
    limit = size_of(long.path) // 2
    with finishing_at(20_000):
        trial = Trial(tmp_path / "run", tensors=3, keep=Retention(bytes=limit))
        for begin in range(0, 900, 30):
            trial.steps(range(begin, begin + 30), 30)
            assert size_of(trial.path) < 1.3 * limit  # at every moment
        trial.close()
    assert size_of(trial.path) <= 1.05 * limit
    run = open_run(trial.path)
    assert run.info["complete"]
    assert events(run, EventKind.DAMAGE) == []
    assert run.steps.tolist() == list(range(900))
    assert 100 < removed_before(run) < 880
    assert "were removed to keep the run small" in events(run, EventKind.RETENTION)[0]
    check_extremes(trial, run)
    check_extremes(trial, run, Family.WEIGHT)  # which has a row every fourth step
    new = {key: truth for key, truth in trial.truth.items() if key[1] >= removed_before(run)}
    trial.truth = new
    trial.check(run)  # what is new is whole


def test_a_removed_file_that_a_kill_left_behind_does_not_count(tmp_path: Path, long: Trial) -> None:
    first = tmp_path / "first.parquet"
    with finishing_at(20_000):
        keep = Retention(bytes=size_of(long.path) // 2)
        trial = Trial(tmp_path / "run", tensors=3, keep=keep)
        for begin in range(0, 900, 30):
            trial.steps(range(begin, begin + 30), 30)
            there = [*trial.path.glob("*/rows/grad/00001-*.parquet")]
            if there and not first.exists():
                home = there[0]
                shutil.copy(home, first)
        trial.close()
    assert not home.exists()
    before = open_run(trial.path)
    shutil.copy(first, home)
    after = open_run(trial.path)
    assert after.info["complete"]
    assert events(after, EventKind.DAMAGE) == []
    for stat in before.recorded:
        assert np.array_equal(before.series[stat], after.series[stat], equal_nan=True)
        assert np.array_equal(before.state(stat), after.state(stat))


def test_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later)
    monkeypatch.setattr(tables, "time", clock)
    monkeypatch.setattr(writer_thread, "time", SimpleNamespace(**{**vars(time), **vars(clock)}))
    with finishing_at(10_000):
        trial = Trial(tmp_path / "run", tensors=3, keep=Retention(seconds=3600.0))
        trial.steps(range(100), 25)
        assert not events(open_run(trial.path), EventKind.RETENTION)
        later = 7200.0
        trial.steps(range(100, 200), 25).close()
    run = open_run(trial.path)
    assert 50 < removed_before(run) <= 110
    check_extremes(trial, run)


def test_the_newest_rows_stay_however_little_is_kept(tmp_path: Path) -> None:
    with finishing_at(10_000):
        trial = Trial(tmp_path / "run", tensors=3, keep=Retention(bytes=1)).steps(range(200), 10)
        trial.close()
    run = open_run(trial.path)
    assert run.info["complete"]
    assert run.steps.tolist() == list(range(200))
    assert (run.state("grad_norm")[-5:] != State.NOT_SAMPLED).all()
    assert len([*trial.path.rglob("rows/grad/*")]) == len([*trial.path.rglob("coarse/grad/*")]) == 1
    assert run.integers("weight_hash").shape == (200, 3)


def test_pruning_a_finished_run(long: Trial, tmp_path: Path) -> None:
    path = Path(shutil.copytree(long.path, tmp_path / "run"))
    size = size_of(path)
    assert prunable(path, Retention(bytes=2 * size)) == {}
    gone = prunable(path, Retention(bytes=size // 2))
    assert size_of(path) == size
    prune(gone)
    assert size // 4 < size_of(path) <= size // 2
    run = open_run(path)
    assert run.info["complete"]
    assert events(run, EventKind.DAMAGE) == []
    assert run.steps.tolist() == list(range(900))
    check_extremes(long, run)
    assert min(run.histograms("grad", run.names[0])) > 0
    prune(prunable(path, Retention(bytes=size // 4)))  # and again
    assert removed_before(open_run(path)) > removed_before(run)
    assert open_run(path).info["complete"]
    old = prunable(path, Retention(seconds=-1.0))
    prune(old)
    assert len([*path.rglob("rows/grad/*")]) == 1
    next(path.rglob("rows/grad/*")).unlink()
    run = open_run(path)  # only coarse rows are left, and an event says what is lost
    assert not run.info["complete"]
    assert np.isfinite(run.series["grad_norm"]).any()


def test_a_growing_run_is_not_pruned(tmp_path: Path) -> None:
    with finishing_at(10_000):
        trial = Trial(tmp_path / "run", tensors=3).steps(range(100))
        assert prunable(trial.path, Retention(bytes=1)) == {}
        trial.close()


# -- what it is for --------------------------------------------------------------------------------


def train(path: Path, keep: str, fault: str, at: int, steps: int) -> Run:
    """A network whose layer 6 explodes for some steps, or has units that die."""
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layers = [part for _ in range(12) for part in (torch.nn.Linear(16, 16), torch.nn.ReLU())]
    for layer in layers[::2]:
        torch.nn.init.kaiming_normal_(layer.weight)
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    sick = model[6]
    others = [p for p in model.parameters() if p is not sick.weight]
    groups = [{"params": [sick.weight], "lr": 1e-8}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=1e-3)
    watcher = gradwatch.watch(model, optimizer, run=path, every=1, keep=keep)
    data = torch.Generator().manual_seed(1)
    for step in range(steps):
        inputs = torch.randn(32, 16, generator=data)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :1]).square().mean()
        loss.backward()
        if fault == "explodes" and at <= step < at + 200:
            sick.weight.grad.mul_(1e6)
        optimizer.step()
        if fault == "dies" and step == at:
            with torch.no_grad():
                sick.bias.fill_(-1e3)
        watcher.log(loss=loss.item())
    watcher.close()
    torch.set_num_threads(threads)
    return open_run(path)


@pytest.mark.parametrize("fault", ["explodes", "dies"])
def test_the_verdict_is_the_same_with_little_kept(tmp_path: Path, fault: str) -> None:
    """Same layer, same kind, same step within 64 rows, though the fault's rows are gone."""
    at, steps = 150, 550
    runs = [train(tmp_path / keep, keep, fault, at, steps) for keep in ("all", "1MB")]
    assert size_of(tmp_path / "1MB") < 10**6 < size_of(tmp_path / "all")
    assert removed_before(runs[1]) > at + 100
    verdicts = [gradwatch.diagnose(run) for run in runs]
    assert verdicts[0].verdict == verdicts[1].verdict == "sick"
    whole, little = (verdict.findings[0] for verdict in verdicts)
    assert (
        whole.check
        == little.check
        == {"explodes": "exploding-gradient", "dies": "dead-units"}[fault]
    )
    assert whole.layers[0] == little.layers[0] == "6"
    assert whole.first_step in (at, at + 1)
    assert abs(whole.first_step - little.first_step) <= 64
