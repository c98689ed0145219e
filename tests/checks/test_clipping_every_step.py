"""What `clipping-every-step` finds, and what it leaves alone."""

from tests.checks.shapes import Severity, make_run, only, quiet, said, table, weight

from gradwatch.run import Run


def clipped(factors: list[float], ratio: float) -> Run:
    values = {"update_ratio": table([ratio], len(factors))}
    return make_run(values, subjects=[weight("a")], scalars={"clip_factor": factors})


def test_clipping_on_every_step() -> None:
    finding = only("clipping-every-step", clipped([1e-4] * 60, 1e-7))
    assert finding.severity is Severity.WARNING
    assert quiet("clipping-every-step", clipped([1e-4] * 60, 1e-3)), "Adam does not mind"
    assert quiet("clipping-every-step", clipped([0.3] * 60, 1e-7))
    assert not said("clipping-every-step", clipped([0.3, 1.0] * 30, 1e-7))
