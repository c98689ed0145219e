"""What `heavy-tailed-gradients` finds, and what it leaves alone."""

from tests.checks.shapes import Severity, make_run, only, said, table, weight


def test_heavy_tails_are_an_information_and_embeddings_are_exempt() -> None:
    subjects = [weight("a"), weight("e", module="Embedding"), weight("c")]
    run = make_run({"grad_kurtosis": table([5e3, 9e3, 20.0], 40)}, subjects=subjects)
    finding = only("heavy-tailed-gradients", run)
    assert finding.layers == ("a",)
    assert finding.severity is Severity.INFO
    calm = make_run({"grad_kurtosis": table([900.0, 0.0, 1.0], 40)}, subjects=subjects)
    assert not said("heavy-tailed-gradients", calm)
