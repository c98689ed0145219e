"""What `loss-scale-overflow` finds, and what it leaves alone."""

from tests.checks.shapes import make_run, said


def test_a_scaler_that_keeps_overflowing() -> None:
    assert said("loss-scale-overflow", make_run({}, scalars={"skipped": [0, 0, 1, 0] * 20}))
    searching = [1] * 15 + [0] * 65
    assert not said("loss-scale-overflow", make_run({}, scalars={"skipped": searching}))
    assert not said(
        "loss-scale-overflow", make_run({}, scalars={"skipped": [0] * 30 + [1] + [0] * 49})
    )
