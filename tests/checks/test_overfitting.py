"""What `overfitting` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import make_run, only, said

from gradwatch.diagnosis import diagnose
from gradwatch.run import Run


def validated(end: float, train: float = 0.05) -> Run:
    valid = np.full(200, np.nan)
    valid[::10] = np.r_[np.linspace(1.6, 0.8, 8), np.linspace(0.8, end, 12)]
    return make_run({}, scalars={"loss": np.geomspace(1.6, train, 200), "val_loss": valid})


def test_overfitting_begins_at_the_best_validation() -> None:
    finding = only("overfitting", validated(2.0))
    assert finding.first_step in (70, 80)


def test_overfitting_at_the_border() -> None:
    assert not said("overfitting", validated(1.15))
    assert said("overfitting", validated(1.4))
    assert not said("overfitting", validated(2.0, train=0.9))


def test_a_validation_loss_near_nothing_is_not_overfitting() -> None:
    valid = np.full(200, np.nan)
    valid[::10] = np.r_[1.6, np.geomspace(1e-3, 1e-5, 9), np.linspace(1e-5, 1e-4, 10)]
    run = make_run({}, scalars={"loss": np.geomspace(1.6, 1e-4, 200), "val_loss": valid})
    assert not said("overfitting", run)


def test_validation_losses_of_other_names() -> None:
    numbers = validated(2.0).scalars
    for name in ("valid/loss", "test_loss", "evalLoss"):
        run = make_run(
            {"grad_norm": np.ones((200, 1))},
            names=["a.weight"],
            scalars={"train_loss": numbers["loss"], name: numbers["val_loss"]},
        )
        assert "overfitting" in [item.check for item in diagnose(run).everything()]
