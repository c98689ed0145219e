"""Windows from stored levels: every band has the true extremes of its steps."""

import numpy as np
import pytest
from tests.store.trial import Trial, sealing_at

from gradwatch.run import window
from gradwatch.stats import Family
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
        patch.setattr(window, "thin", None)  # the levels must do
        bands = run.window(*stretch, points=20).bands("grad_norm")
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
    assert run.source.bands("grad_norm", 0, 89, 10) is None
    assert len(run.window(points=10).bands("grad_norm").first_steps) <= 10
