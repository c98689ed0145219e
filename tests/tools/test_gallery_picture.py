"""The pictures of the gallery lose no extreme and draw both runs on the same axes."""

import re

import numpy as np
from tools.gallery_picture import POINTS, picture, thinned

from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run


def run_of(loss: np.ndarray) -> Run:
    return Run.from_norms({"0.weight": np.ones(len(loss))}, scalars={"loss": loss})


def drawn(sick: np.ndarray, mended: np.ndarray) -> str:
    evidence = (Evidence("loss", None, 3, 1.0),)
    finding = Finding("loss-spike", Severity.WARNING, (), 3, 3, "it <jumps>", evidence)
    return picture("loss-spike", finding, run_of(sick), run_of(mended))


def first_curve(text: str, kind: str) -> np.ndarray:
    found = re.search(rf'<polyline class="{kind}" points="([^"]+)"', text)
    assert found is not None
    return np.array([[float(part) for part in point.split(",")] for point in found[1].split()])


def test_a_long_curve_keeps_its_spike_in_few_points() -> None:
    values = np.ones(1000)
    values[[333, 334]] = 50.0, -50.0
    x, y = thinned(np.arange(1000.0), values)
    assert len(x) <= POINTS
    assert list(x) == sorted(x)
    assert (y.min(), y.max()) == (-50.0, 50.0)


def test_the_same_value_is_at_the_same_height_in_both_runs() -> None:
    text = drawn(np.array([1.0, 2, 3, 4]), np.array([1.0, 1.0, 0.5, 0.25]))
    sick, mended = (first_curve(text, kind) for kind in ("sick", "mended"))
    assert sick[0, 1] == mended[0, 1]
    assert sick[-1, 1] < mended[-1, 1]  # higher values are further up


def test_where_the_loss_is_lost_is_said() -> None:
    lost = np.where(np.arange(40) < 20, 1.0, np.nan)
    assert "no value from 20 on" in drawn(lost, np.ones(40))
    assert "no value" not in drawn(np.ones(40), np.ones(40))
