"""Measured as on an accelerator, a training is the same to the bit; tensors come, go and grow."""

from pathlib import Path

import pytest
from tests.record.harm.cases import CASES
from tests.record.harm.comparing import train

STEPS = 18
FAR = (
    "mlp, adamw foreach",
    "mlp, lbfgs",
    "cnn, in place",
    "cnn, channels last",
    "batch norm, modes",
    "lstm",
    "gpt, tied",
    "unfrozen later",
    "bf16",
    "autocast",
    "scaler",
    "checkpoint",
    "checkpoint, selective",
    "per sample gradients",
    "gan",
    "complex and empty",
    "saved tensors on the cpu",
    "growing",
    "not finite",
)


@pytest.mark.parametrize("case", FAR)
def test_a_training_watched_from_afar_is_the_same(
    case: str, tmp_path: Path, on_device: None, caplog: pytest.LogCaptureFixture
) -> None:
    alone = train(CASES[case], None, STEPS)
    watched = train(CASES[case], tmp_path / "run", STEPS, budget=1.0)
    assert alone.differences(watched) == []
    assert [record for record in caplog.records if record.name.startswith("gradwatch")] == []
