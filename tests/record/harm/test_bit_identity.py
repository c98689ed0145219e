"""Training with and without us is the same to the bit: parameters, optimizers, random numbers."""

from pathlib import Path

import pytest
from tests.record.harm.cases import CASES
from tests.record.harm.comparing import train


@pytest.mark.parametrize("case", CASES)
def test_a_watched_training_is_the_same(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = train(CASES[case], None)
    watched = train(CASES[case], tmp_path / "run", budget=1.0)
    assert alone.differences(watched) == []
    assert [record for record in caplog.records if record.name.startswith("gradwatch")] == []


def test_the_comparison_sees_a_single_bit(tmp_path: Path) -> None:
    case = CASES["mlp, adam"]
    alone = train(case, None)

    def disturbed():  # type: ignore[no-untyped-def]
        loop = case()
        loop.model[0].weight.data[0, 0] += 1e-7
        return loop

    assert "module 0 0.weight" in alone.differences(train(disturbed, None))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 30
