"""What `output-misuse` finds, and what it leaves alone."""

import pytest
from tests.checks.shapes import make_run, net, said, weight


@pytest.mark.parametrize(
    ("fed", "expected"), [("probabilities", True), ("logits", False), (None, False)]
)
def test_probabilities_into_cross_entropy(fed: str | None, expected: bool) -> None:
    chain = net("a", "out", "soft", kinds=["Linear", "Linear", "Softmax"])
    run = make_run(
        {}, subjects=[weight("a"), weight("out")], graph=chain, scalars={"loss": [1.5] * 5},
        info={"loss_fed_with": fed} if fed else {},
    )  # fmt: skip
    found = said("output-misuse", run)
    assert bool(found) is expected
    assert not expected or found[0].layers == ("soft", "out")
