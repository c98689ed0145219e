"""What `update-leads-loss` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, make_run, only, said, table


def test_the_update_that_led_the_loss() -> None:
    loss, first, second = np.full(100, 0.5), np.full(100, 0.01), np.full(100, 0.01)
    first[71:] *= 5
    second[78:] *= 5
    loss[80:] = 6.0
    run = make_run(
        {"update_norm": table([first, second], 100)},
        names=["a.weight", "b.weight"],
        scalars={"loss": loss},
    )
    finding = only("update-leads-loss", run)
    assert (finding.layers, finding.first_step, finding.last_step) == (("a",), 71, 80)
    assert finding.severity is Severity.INFO
    calm = make_run(
        {"update_norm": table([0.01, 0.01], 100)},
        names=["a.weight", "b.weight"],
        scalars={"loss": loss},
    )
    assert not said("update-leads-loss", calm)
