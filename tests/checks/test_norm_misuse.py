"""What `norm-misuse` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import layer, make_run, only, said, table, weight

from gradwatch.run import Run


def modes(share: float, frozen: bool = False) -> Run:
    training = (np.arange(40) >= 40 * share).astype(float)
    subjects = [weight("bn", (8,), module="BatchNorm1d", frozen=frozen), layer("bn")]
    return make_run({"probe_training": table([training], 40)}, subjects=subjects)


def test_batch_norm_in_evaluation_mode() -> None:
    assert only("norm-misuse", modes(1.0)).layers == ("bn",)
    assert said("norm-misuse", modes(0.9))
    assert not said("norm-misuse", modes(0.8))


def test_batch_norm_frozen_on_purpose() -> None:
    assert not said("norm-misuse", modes(1.0, frozen=True))
