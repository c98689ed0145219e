"""What `update-ratio-too-small` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import FALLING, Severity, only, said, updates


def test_updates_too_small_while_the_loss_stands() -> None:
    finding = only("update-ratio-too-small", updates(1e-8, 2e-8, 1e-7))
    assert finding.severity is Severity.WARNING
    assert "2.0e-08" in finding.message


def test_updates_too_small_are_fine_where_the_loss_fell() -> None:
    assert not said("update-ratio-too-small", updates(1e-8, 2e-8, 1e-7, loss=FALLING))


def test_updates_at_the_lower_border() -> None:
    assert only("update-ratio-too-small", updates(5e-6, 5e-6, 5e-6)).severity is Severity.INFO
    assert not said("update-ratio-too-small", updates(2e-5, 2e-5, 2e-5))


def test_a_rate_that_decays_to_zero_at_the_end_is_not_too_small() -> None:
    decay = 1e-3 * 0.5 * (1 + np.cos(np.pi * np.arange(60) / 59))
    assert not said("update-ratio-too-small", updates(decay, decay, decay))
