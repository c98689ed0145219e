"""Runs show themselves in notebooks: static, small, escaped."""

import re

import numpy as np
from tests.making import make_run
from tests.views.samples import HOSTILE, network

from gradwatch.run import Run


def test_a_run_shows_its_size_and_its_loss() -> None:
    run = network(4, 50)
    html = run._repr_html_()
    loss = run.scalars["loss"]
    assert "50 (0 to 49)" in html
    assert f"loss from {loss[0]:.3g} to {loss[-1]:.3g}" in html
    assert len(html) < 5000


def test_nothing_in_a_name_becomes_markup() -> None:
    run = make_run({}, scalars={name: [1.0, 2.0] for name in HOSTILE}, info={"name": HOSTILE[0]})
    html = run._repr_html_()
    assert not re.search(r"<(script|img|svg onload)", html)
    assert "&lt;/script&gt;" in html


def test_runs_without_anything_show_themselves_too() -> None:
    empty = Run.from_norms({})
    assert "nothing" in make_run({})._repr_html_()
    assert "0, 0" in empty._repr_html_()
    nan = make_run({"grad_norm": np.ones((2, 1))}, names=["a"], scalars={"loss": [np.nan, np.nan]})
    assert "svg" not in nan._repr_html_()
