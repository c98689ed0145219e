"""What `eps-dominated-adam` finds, and what it leaves alone."""

import numpy as np
import pytest
from tests.checks.shapes import FALLING, NAMES, STUCK, make_run, quiet, said, table


@pytest.mark.parametrize(("loss", "quietly"), [(STUCK, False), (FALLING, True)])
def test_epsilon_above_the_gradients(loss: np.ndarray, quietly: bool) -> None:
    run = make_run(
        {"optim_eps_fraction": table([0.99, 0.9, 0.8], 60)}, names=NAMES, scalars={"loss": loss}
    )
    assert said("eps-dominated-adam", run)
    assert quiet("eps-dominated-adam", run) is quietly


def test_epsilon_below_most_gradients() -> None:
    run = make_run(
        {"optim_eps_fraction": table([0.9, 0.3, 0.3], 60)}, names=NAMES, scalars={"loss": STUCK}
    )
    assert not said("eps-dominated-adam", run)
