"""Windows of a run, as pages draw them: held against what was recorded."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.store.trial import VALUED, Trial, finishing_at, kept

from gradwatch.run import downsample as downsampling
from gradwatch.run.downsample import Downsampled, bucket_edges, downsample
from gradwatch.stats import Family, Stat
from gradwatch.store import Retention, folder, open_run
from gradwatch.store.places import Place

STEPS = 2000
LARGEST = float(np.finfo(np.float32).max)


def truth_of(trial: Trial, family: Family, stat: str) -> np.ndarray:
    """[step, subject]: what was recorded and is finite, with the digits of float32."""
    table = np.full((STEPS, len(trial.ids)), np.nan)
    for (own, step), (rows, states) in trial.truth.items():
        if own is family:
            values = np.where(np.isin(states, VALUED), kept(rows[stat]), np.nan)
            table[step] = np.where(np.isfinite(values), values, np.nan)
    return rounded(table)


def rounded(table: np.ndarray) -> np.ndarray:
    return table.clip(-LARGEST, LARGEST).astype(np.float32).astype(float)


@pytest.fixture(scope="module", params=["finished", "growing", "small"])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    keep = Retention(bytes=400_000) if request.param == "small" else None
    path = tmp_path_factory.mktemp(request.param) / "run"
    with finishing_at(60_000):
        trial = Trial(path, tensors=3, keep=keep).steps(range(STEPS), 250)
        if request.param != "growing":
            trial.close()
    return trial


@pytest.mark.parametrize("stat", ["grad_norm", "grad_count", "grad_skewness"])
@pytest.mark.parametrize("stretch", [(0, STEPS - 1), (203, 1700), (-50, STEPS + 50)])
@pytest.mark.parametrize("points", [1, 7, 20])
def test_no_extreme_is_lost(trial: Trial, stat: str, stretch: tuple[int, int], points: int) -> None:
    """Not even of rows that are gone: of 64 of them the extreme may be in the bucket beside."""
    run, true = open_run(trial.path), truth_of(trial, Family.GRAD, stat)
    found = run.window(*stretch, points=points).stat(stat)
    exact = downsample(run.steps, true, *stretch, points)
    assert (found.first_steps == exact.first_steps).all()
    assert (found.last_steps == exact.last_steps).all()
    low, high = rounded(found.low), rounded(found.high)
    largest = np.fmax(abs(low), abs(high))
    for at, (first, last) in enumerate(zip(exact.first_steps, exact.last_steps, strict=True)):
        near = true[max(first - 64, 0) : last + 65]
        assert (np.nanmin(near, axis=0) <= low[at]).all()
        assert (np.nanmax(near, axis=0) >= high[at]).all()
        core = true[first + 64 : last - 64]  # whose rows, coarse or not, are all in this bucket
        if len(core):
            assert (largest[at] >= np.nanmax(abs(core), axis=0)).all()
    if not trial.path.parent.name.startswith("small"):
        assert np.array_equal(low, exact.low, equal_nan=True)
        assert np.array_equal(high, exact.high, equal_nan=True)
        assert np.array_equal(rounded(found.last), exact.last, equal_nan=True)


@pytest.mark.parametrize("stat", ["grad_norm", "grad_count", "weight_norm"])
@pytest.mark.parametrize("stretch", [(0, STEPS - 1), (203, 1700)])
def test_a_wide_window_of_very_many_values_is_drawn_from_coarse_rows(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, stat: str, stretch: tuple[int, int]
) -> None:
    """Its extremes are all there, at most 64 rows from where they were."""
    monkeypatch.setattr(downsampling, "MOST_CELLS", 100)
    read: list[str] = []
    real = Place.open
    monkeypatch.setattr(Place, "open", lambda place, file: read.append(file) or real(place, file))
    folder.held_columns.cache_clear()
    family = Family(stat.partition("_")[0])
    away = 64 * (1 if family is Family.GRAD else 4)  # a weight has a row every fourth step
    run, true = open_run(trial.path), truth_of(trial, family, stat)
    points = 4 if family is Family.GRAD else 1
    found = run.window(*stretch, points=points).stat(stat)
    assert any(file.startswith("coarse/") for file in read)
    small = trial.path.parent.name.startswith("small")  # of which few rows are left to read
    assert small or not any(re.match(r"rows/.*\.parquet", file) for file in read)
    for low, high, first, last in zip(
        found.low, found.high, found.first_steps, found.last_steps, strict=True
    ):
        near = true[max(first - away, 0) : last + away + 1]
        core = true[first + away : last - away + 1]
        assert (np.nanmin(near, axis=0) <= rounded(low)).all()
        assert (rounded(low) <= np.nanmin(core, axis=0)).all()
        assert (np.nanmax(core, axis=0) <= rounded(high)).all()
        assert (rounded(high) <= np.nanmax(near, axis=0)).all()
    whole = run.window(*stretch, points=400).stat(stat)  # narrow buckets: from the rows
    if not small:
        exact = downsample(run.steps, true, *stretch, 400)
        assert np.array_equal(rounded(whole.high), exact.high, equal_nan=True)
    assert len(run.window(points=1).stat(Stat.WEIGHT_HASH).low) == 1  # has no coarse rows


def test_the_last_value_is_the_newest(trial: Trial) -> None:
    run, true = open_run(trial.path), truth_of(trial, Family.GRAD, "grad_norm")
    last = rounded(run.window(points=4).stat("grad_norm").last)
    for column in range(3):
        (rows,) = np.nonzero(np.isfinite(true[:, column]))
        assert last[-1, column] == true[rows[-1], column]
    assert np.isin(last, true).all()


def test_what_is_rare_and_what_has_no_order(trial: Trial) -> None:
    run, true = open_run(trial.path), truth_of(trial, Family.WEIGHT, "weight_norm")
    found: Downsampled = run.window(points=3).stat("weight_norm")  # a row every fourth step
    starts, ends = bucket_edges(run.steps, 0, STEPS - 1, 3)
    assert (found.first_steps == run.steps[starts]).all()
    assert (found.last_steps == run.steps[ends - 1]).all()
    largest = np.fmax(abs(found.low), abs(found.high))
    assert (rounded(np.nanmax(largest, axis=0)) == np.nanmax(abs(true), axis=0)).all()
    assert len(run.window(points=3).stat(Stat.WEIGHT_HASH).low) == 3
    assert run.window(points=3).scalar("loss").low.shape == (3, 1)


def test_more_points_than_steps(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run").steps(range(30))
    run = open_run(trial.close())
    bands = run.window(points=100).stat("grad_norm")
    assert len(bands.first_steps) == 30
    finite = np.where(np.isfinite(run.series["grad_norm"]), run.series["grad_norm"], np.nan)
    assert np.array_equal(bands.low, finite, equal_nan=True)
