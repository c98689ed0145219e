"""What `update-lost-to-rounding` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import FALLING, STUCK, Severity, make_run, only, quiet, said, table, weight


def rounding(lost: float, loss: np.ndarray, dtype: str = "bfloat16"):  # type: ignore[no-untyped-def]
    subjects = [weight("a", dtype=dtype), weight("b", dtype=dtype)]
    return make_run(
        {"update_lost_fraction": table([lost, lost], 60)}, subjects=subjects, scalars={"loss": loss}
    )


def test_updates_lost_while_the_loss_stands_still() -> None:
    assert only("update-lost-to-rounding", rounding(0.9, STUCK)).severity is Severity.WARNING


def test_updates_lost_while_the_loss_falls_are_only_mentioned() -> None:
    assert quiet("update-lost-to-rounding", rounding(0.9, FALLING))


def test_rounding_at_the_border_and_in_float32() -> None:
    assert not said("update-lost-to-rounding", rounding(0.45, STUCK))
    assert not said("update-lost-to-rounding", rounding(0.9, STUCK, "float32"))
