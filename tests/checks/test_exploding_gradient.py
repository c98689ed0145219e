"""What `exploding-gradient` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import NAMES, Severity, gradients, make_run, only, quiet, said, table


def test_exploding_on_three_steps() -> None:
    column = np.ones(60)
    column[[20, 30, 40]] = 5e3
    finding = only("exploding-gradient", gradients(1.0, column, 1.0))
    assert finding.layers[0] == "mid"
    assert finding.first_step == 20
    assert finding.severity is Severity.WARNING


def test_exploding_once_beyond_a_million_is_critical() -> None:
    column = np.ones(60)
    column[50] = 2e6
    assert only("exploding-gradient", gradients(1.0, column, 1.0)).severity is Severity.CRITICAL


def test_exploding_grows_a_thousandfold() -> None:
    column = np.geomspace(0.01, 500, 60)
    assert not quiet("exploding-gradient", gradients(column, 1.0, 1.0))


def test_exploding_is_quiet_below_the_border() -> None:
    column = np.ones(60)
    column[[20, 30]] = 5e3
    assert not said("exploding-gradient", gradients(1.0, column, 1.0))
    assert quiet("exploding-gradient", gradients(1.0, np.full(60, 300.0), 1.0))


def test_exploding_ignores_steps_the_scaler_skipped() -> None:
    column = np.ones(60)
    column[:5] = 1e9
    skipped_steps = (np.arange(60) < 5).astype(float)
    assert not said(
        "exploding-gradient", gradients(column, 1, 1, scalars={"skipped": skipped_steps})
    )


def test_a_summed_loss_is_only_an_information() -> None:
    loss = np.linspace(4000, 400, 60)
    run = make_run(
        {"grad_norm": table([2e3, 1.5e3], 60), "update_ratio": table([1e-3, 1e-3], 60)},
        names=NAMES[:2],
        scalars={"loss": loss},
    )
    assert quiet("exploding-gradient", run)
