"""What `uneven-learning-speeds` finds, and what it leaves alone."""

from tests.checks.shapes import FALLING, Severity, only, said, updates


def test_uneven_speeds_are_an_information() -> None:
    finding = only("uneven-learning-speeds", updates(1e-7, 1e-3, 1e-3, loss=FALLING))
    assert finding.severity is Severity.INFO
    assert finding.layers == ("in", "mid")
    assert not said("uneven-learning-speeds", updates(1e-5, 1e-3, 1e-3))
