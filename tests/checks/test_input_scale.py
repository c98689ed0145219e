"""What `input-scale` finds, and what it leaves alone."""

from tests.checks.shapes import Severity, make_run, only, said, weight

from gradwatch.run import Run


def scale(values: object) -> Run:
    return make_run({}, subjects=[weight("a"), weight("b")], scalars={"input_rms": values})  # type: ignore[dict-item]


def test_inputs_far_from_one() -> None:
    assert only("input-scale", scale([300.0] * 10)).layers == ("a",)
    assert not said("input-scale", scale([90.0] * 10))
    assert not said("input-scale", scale([1.0] * 10))


def test_one_odd_batch_is_mentioned() -> None:
    finding = only("input-scale", scale([1.0] * 9 + [50.0]))
    assert (finding.severity, finding.first_step) == (Severity.INFO, 9)
