"""What `stale-second-moment` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import NAMES, Severity, make_run, only, quiet, said, table


def second_moment(height: float, after: float):  # type: ignore[no-untyped-def]
    ratio, loss = np.ones(100), np.full(100, 0.5)
    ratio[60] = height
    loss[0], loss[63] = 2.0, after
    return make_run(
        {"optim_ratio_rms": table([ratio, 1.0], 100)}, names=NAMES[:2], scalars={"loss": loss}
    )


def test_a_stale_second_moment_before_a_rise_of_the_loss() -> None:
    finding = only("stale-second-moment", second_moment(6.0, 9.0))
    assert finding.severity is Severity.WARNING
    assert (finding.layers, finding.first_step) == (("in",), 60)


def test_a_stale_second_moment_without_a_rise_is_only_mentioned() -> None:
    assert quiet("stale-second-moment", second_moment(6.0, 0.5))
    assert not said("stale-second-moment", second_moment(2.0, 9.0))
