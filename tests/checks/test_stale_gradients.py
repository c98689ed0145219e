"""What `stale-gradients` finds, and what it leaves alone."""

from tests.checks.shapes import Severity, make_run, only, said


def test_stale_gradients_on_every_step_but_the_first() -> None:
    finding = only("stale-gradients", make_run({}, scalars={"stale": [0, *[1] * 30]}))
    assert finding.severity is Severity.CRITICAL
    assert finding.layers == ()


def test_stale_gradients_at_the_border() -> None:
    mostly = [0, *[1] * 27, *[0] * 3]
    assert said("stale-gradients", make_run({}, scalars={"stale": mostly}))
    assert not said("stale-gradients", make_run({}, scalars={"stale": [0, *[1, 1, 1, 0] * 8]}))
    assert not said("stale-gradients", make_run({}, scalars={"stale": [0] * 30}))
