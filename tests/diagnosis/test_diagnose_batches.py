"""A finding carries the ids of the samples of its first step."""

from tests.making import make_run

from gradwatch.diagnosis import diagnose
from gradwatch.finding import Finding


def test_the_ids_of_the_first_step_come_with_the_finding() -> None:
    series = {
        "grad_norm": [[1.0]] * 20 + [[float("nan")]] * 5,
        "grad_nan": [[0.0]] * 20 + [[3.0]] * 5,
    }
    loss = [1.0] * 20 + [float("nan")] * 5
    info = {"batches": [[19, [1, 2]], [20, [7, "x"]], "odd", [None, 3]]}
    run = make_run(
        series,
        names=("a.weight",),
        scalars={"loss": loss, "loss_nonfinite": [0.0] * 20 + [1.0] * 5},
        states={"grad_norm": [[0]] * 25},
        info=info,
    )
    finding = diagnose(run).findings[0]
    assert (finding.check, finding.first_step) == ("nonfinite", 20)
    assert finding.batch == (7, "x")
    assert Finding.from_dict(finding.to_dict()) == finding
