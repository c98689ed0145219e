"""What `saturation` finds, and what it leaves alone."""

import numpy as np
import pytest
from tests.checks.shapes import (
    Severity,
    flat,
    layer,
    make_run,
    net,
    only,
    quiet,
    said,
    table,
    weight,
)

from gradwatch.diagnosis import diagnose


def test_saturation_of_a_hidden_layer() -> None:
    finding = only("saturation", flat(0.8))
    assert (finding.layers, finding.severity) == (("a",), Severity.WARNING)


def test_saturation_at_the_border() -> None:
    assert only("saturation", flat(0.4)).severity is Severity.INFO
    assert not said("saturation", flat(0.2))


def test_an_output_near_one_because_the_data_are_is_exempt() -> None:
    assert not said("saturation", flat(0.1, last=0.99))


def test_collapsed_attention() -> None:
    finding = only("saturation", flat(0.0, entropy=0.1))
    assert finding.layers == ("a",)
    assert "entropy" in finding.message
    assert quiet("saturation", flat(0.0, entropy=0.3))
    assert not said("saturation", flat(0.0, entropy=0.5))


@pytest.mark.parametrize(
    ("end", "start", "expected"),
    [(0.05, 0.8, True), (0.05, 0.1, False), (1.2, 0.8, True), (1.8, 0.8, False)],
)
def test_attention_that_learnt_to_be_sure_is_only_mentioned(
    end: float, start: float, expected: bool
) -> None:
    run = make_run(
        {
            "act_flat_fraction": table([0.0, 0.0], 40),
            "act_entropy": table([np.r_[start, np.full(39, 0.05)], np.nan], 40),
        },
        subjects=[weight("a"), weight("out"), layer("a"), layer("out")],
        graph=net("a", "out"),
        scalars={"loss": np.geomspace(2.0, end, 40)},
    )
    (found,) = [item for item in diagnose(run).everything() if item.check == "saturation"]
    assert (found.severity is Severity.INFO) is expected
