"""What `loss-spike` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import falling, only, run_of, said

RANDOM = np.random.default_rng(0)


def test_a_spike_that_comes_back() -> None:
    loss, ratio = falling(RANDOM), np.full(200, 1e-3)
    loss[120], loss[121] = 9.0, 3.0
    ratio[119] = 0.5
    finding = only("loss-spike", run_of(loss, 1.6, update_ratio=ratio))
    assert finding.first_step == 120
    assert finding.layers[0] == "a"


def test_a_rise_that_stays_is_no_spike_and_small_ones_do_not_count() -> None:
    loss = falling(RANDOM)
    loss[120:] += 9.0
    assert not said("loss-spike", run_of(loss, 1.6))
    loss = falling(RANDOM)
    loss[120] = 1.5
    assert not said("loss-spike", run_of(loss, 1.6))
