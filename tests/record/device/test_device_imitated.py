"""The accelerator's path on a device that gives no number away (in a process of its own)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = ["healthy", "sick", "clipped", "by hand", "taps", "cleared to zeros", "never cleared"]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def results() -> Any:
    command = [sys.executable, "-m", "tests.record.device.imitated_training"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_everything_is_recorded_as_on_the_cpu(results: Any, case: str) -> None:
    found = results["compared"][case]
    assert found["differences"] == []
    assert found["rows"] > 100
    assert found["moved"] <= (2 if case == "clipped" else 0)
    assert found["events"] == ["recording starts", "closed"]


@pytest.mark.parametrize("case", CASES)
def test_the_training_is_the_same_to_the_bit(results: Any, case: str) -> None:
    assert results["compared"][case]["same weights"]


def test_gradients_that_were_left_over_are_told_from_zeros(results: Any) -> None:
    compared = results["compared"]
    assert compared["cleared to zeros"]["stale"][:3] == [0.0, 0.0, 0.0]
    assert compared["never cleared"]["stale"][:3] == [0.0, 1.0, 1.0]


def test_a_planted_wait_is_caught_wherever_it_is(results: Any) -> None:
    assert len(results["sabotaged"]) == 10
    for place, failure in results["sabotaged"].items():
        assert "waits for the device" in failure, place


def test_operations_do_not_multiply(results: Any) -> None:
    """10 tensors of 5 sizes, 6 probed layers."""
    counted = results["counted"]
    assert counted["every second"][1::2] == [0, 0]
    everything, only_gradients = counted["by default"][0], counted["by default"][1]
    assert everything <= 660
    assert only_gradients <= 145
    more = counted["by default, 6 layers more"]
    # Layers of a size that is there already: their outputs are looked at one by one, but their
    # gradients, weights and optimizer states with those of the others.
    assert (more[1] - only_gradients) / 6 <= 2
    assert (more[0] - everything) / 6 <= 19


def test_nothing_is_launched_while_a_graph_is_captured(results: Any) -> None:
    ours, states = results["captured"]["ours"], results["captured"]["states"]
    assert ours[2] == 0
    assert min(ours[1], ours[3]) > 50
    for family in ("weight", "grad", "update", "optim"):
        assert states[f"{family} 2"] == "NOT_SAMPLED"
        assert states[f"{family} 3"] == "MEASURED"


def test_parameters_on_two_devices(results: Any) -> None:
    assert results["two devices"] == []
