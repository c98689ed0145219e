"""What `clipped-to-nothing` finds, and what it leaves alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checks.shapes import FALLING, STUCK, Severity, make_run, only, said, table, weight
from tests.checks.trainings import headline, loud, mlp, plain, record
from torch import nn

from gradwatch.run import Run

NAME = "clipped-to-nothing"
SPREAD = np.random.default_rng(0).uniform(0.95, 1.0, 60)


def trained(path: Path, kind: type, rate: float, share: float) -> tuple[Run, list[float]]:
    """Every gradient is cut to about this share of itself; also the true factors."""
    model, factors = mlp(), []
    optimizer = kind(model.parameters(), rate)

    def clip(_: int) -> None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5 * share)
        factors.append(min(1.0, 0.5 * share / float(norm)))

    each = plain(model, optimizer, before_step=clip)
    return record(path, model, optimizer, each=each, steps=100), factors


@pytest.mark.parametrize("share", [9e-4, 1e-5])
def test_a_factor_below_a_thousandth_on_every_step(tmp_path: Path, share: float) -> None:
    run, truth = trained(tmp_path, torch.optim.SGD, 0.1, share)
    np.testing.assert_allclose(run.scalars["clip_factor"][:100], truth, rtol=1e-4)
    finding = headline(run)
    assert (finding.check, finding.layers) == (NAME, ())
    typical = float(np.median(truth[50:]))
    assert finding.evidence[0].measured == pytest.approx(typical, rel=1e-3)
    assert f"a learning rate of 0.1 works like {0.1 * typical:.1e}" in finding.message
    assert not said("clipping-every-step", run), "one fault, one finding"
    assert loud(run) - {item.check for item in finding.consequences} == {NAME}


@pytest.mark.parametrize(("kind", "rate"), [(torch.optim.Adam, 0.01), (torch.optim.SGD, 100.0)])
def test_steps_that_are_large_enough_all_the_same(tmp_path: Path, kind: type, rate: float) -> None:
    """Adam does not mind, and a rate may be chosen with the clipping in mind."""
    run, _ = trained(tmp_path, kind, rate, 5e-4)
    assert not said(NAME, run)


def clipped(
    factors: object, loss: np.ndarray = STUCK, ratio: float = 1e-6, norm: object = 1.0
) -> Run:
    return make_run(
        {"update_ratio": table([ratio], 60), "grad_norm": table([norm], 60)},
        subjects=[weight("a")],
        scalars={"clip_factor": np.broadcast_to(np.asarray(factors, float), 60), "loss": loss},
        info={"optimizer": "SGD"},
    )


def test_the_limits() -> None:
    assert only(NAME, clipped(9.9e-4 * SPREAD)).severity is Severity.CRITICAL
    assert only(NAME, clipped(5e-3 * SPREAD)).severity is Severity.WARNING
    assert not said(NAME, clipped(2e-2 * SPREAD))
    assert not said(NAME, clipped(1e-4 * SPREAD, FALLING)), "it learns"
    assert not said(NAME, clipped(1e-4 * SPREAD, ratio=1e-2)), "the weights move"


def test_a_constant_of_the_loop_is_no_clipping() -> None:
    """Gradients of a loss times a thousand, divided by it by hand."""
    assert not said(NAME, clipped(1e-3, norm=SPREAD))
