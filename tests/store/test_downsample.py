"""Windows from stored levels: every band has the true extremes of its steps."""

import numpy as np
import pytest
from tests.store.trial import Trial, sealing_at

from gradwatch.run import downsample
from gradwatch.stats import Family, Stat
from gradwatch.store import Retention, open_run


@pytest.mark.parametrize("keep", [None, Retention(100, 400)])
@pytest.mark.parametrize("stretch", [(0, 999), (203, 911)])
def test_bands(tmp_path, monkeypatch, keep, stretch):
    with sealing_at(60_000):
        trial = Trial(tmp_path / "run", tensors=3, families=(Family.GRAD,), keep=keep)
        trial.steps(range(1000))
        trial.close()
    run = open_run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(downsample, "downsample", None)  # the levels must do
        bands = run.window(*stretch, points=20).stat("grad_norm")
    assert 10 <= len(bands.first_steps) <= 20
    assert bands.first_steps[0] == stretch[0]
    assert bands.last_steps[-1] == stretch[1]
    assert (bands.first_steps[1:] == bands.last_steps[:-1] + 1).all()
    true = np.full((1000, 3), np.nan)
    for (_, step), (rows, states) in trial.truth.items():
        values = np.where(np.isin(states, [0, 5]), rows["grad_norm"], np.nan)
        true[step] = np.where(np.isfinite(values), values, np.nan)
    for number in range(len(bands.first_steps)):
        part = true[bands.first_steps[number] : bands.last_steps[number] + 1]
        assert np.allclose(bands.low[number], np.nanmin(part, axis=0), rtol=1e-6)
        assert np.allclose(bands.high[number], np.nanmax(part, axis=0), rtol=1e-6)


def test_short_runs_are_thinned_from_rows(tmp_path):
    trial = Trial(tmp_path / "run", families=(Family.GRAD,)).steps(range(90))
    trial.close()
    run = open_run(tmp_path / "run")
    assert run.source.downsample(Stat.GRAD_NORM, 0, 89, 10) is None
    assert len(run.window(points=10).stat("grad_norm").first_steps) <= 10


def test_stretches_of_which_only_coarser_buckets_are_left(tmp_path, monkeypatch):
    """Rows go after 100 steps, tens after 400; of the oldest steps only hundreds are kept."""
    monkeypatch.setattr("gradwatch.store.rollups.ROLLUP_FILE_BYTES", 1)
    with sealing_at(20_000):
        keep = Retention(100, 400)
        trial = Trial(tmp_path / "run", tensors=3, families=(Family.GRAD,), keep=keep)
        trial.steps(range(2000))
        trial.close()
    run = open_run(tmp_path / "run")
    names = {path.name[0] for path in (tmp_path / "run").glob("*/*.gw?")}
    assert {"a", "b", "c"} <= names
    with monkeypatch.context() as patch:
        patch.setattr(downsample, "downsample", None)
        patch.setattr(type(run.source), "load", None)  # nothing is read whole
        for first, last, points in (
            (0, 1999, 90),
            (150, 849, 30),
            (200, 299, 50),
            (1850, 1999, 50),
        ):
            bands = run.window(first, last, points=points).stat("grad_norm")
            assert bands.first_steps[0] >= first
            assert bands.last_steps[-1] <= last
            part = _truth(trial, 2000)[first : last + 1]
            kept = np.nanmax(bands.high, axis=0)
            if first % 100 == 0 and last % 100 == 99:  # no bucket is cut
                assert np.allclose(kept, np.nanmax(part, axis=0), rtol=1e-6)
            assert (kept <= np.nanmax(part, axis=0) * (1 + 1e-6)).all()


def test_whole_buckets_wait_for_each_other_and_are_written_at_the_end(tmp_path):
    with sealing_at(20_000):
        trial = Trial(tmp_path / "run", tensors=3, families=(Family.GRAD,))
        trial.steps(range(3000))
        trial.close()
    (attempt,) = open_run(tmp_path / "run").source.attempts
    by_level = {}
    for chunk in attempt.rollups:
        by_level.setdefault(chunk.level, []).append(len(chunk.head.sizes))
    assert {level: sum(sizes) for level, sizes in by_level.items()} == {1: 300, 2: 30, 3: 3}
    assert max(by_level[2]) >= 16  # not one block for each of thirty hundreds


def _truth(trial, steps):
    true = np.full((steps, 3), np.nan)
    for (_, step), (rows, states) in trial.truth.items():
        values = np.where(np.isin(states, [0, 5]), rows["grad_norm"], np.nan)
        true[step] = np.where(np.isfinite(values), values, np.nan)
    return true
