"""GRADWATCH_DEVICE_ENGINE, and numbers on their way from several devices."""

import sys

import pytest
import torch

from gradwatch.errors import Exit, GradwatchError
from gradwatch.record.device import check_forced, device_engines, forced, hindrance
from gradwatch.record.transfer import Transfer


def test_an_engine_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [torch.ones(2), torch.ones(3, device="meta")]
    assert forced() is None
    assert device_engines(some) == {}
    monkeypatch.setenv("GRADWATCH_DEVICE_ENGINE", "Torch")
    assert device_engines(some[:1]) == {"cpu": "torch"}
    check_forced(some)
    monkeypatch.setenv("GRADWATCH_DEVICE_ENGINE", "abacus")
    with pytest.raises(GradwatchError, match="'abacus'") as error:
        check_forced([])
    assert error.value.exit_code is Exit.USAGE


def test_triton_that_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWATCH_DEVICE_ENGINE", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    check_forced([])
    with pytest.raises(GradwatchError, match="cannot be had: on a CPU") as error:
        check_forced([torch.ones(2)])
    assert error.value.exit_code is Exit.USAGE
    monkeypatch.setitem(sys.modules, "gradwatch.record.triton", None)
    assert "cannot be imported" in hindrance(torch.device("cuda"))


def test_numbers_of_many_types_come_in_their_order() -> None:
    memory = torch.arange(20.0)
    tensors = [
        *(
            memory[::3],
            torch.tensor(2.5, dtype=torch.bfloat16),
            torch.tensor([1, 2], dtype=torch.int8),
        ),
        *(torch.zeros(0), memory[:4].view(2, 2).t(), torch.tensor([1e300], dtype=torch.float64)),
    ]
    transfer = Transfer(tensors)
    memory.zero_()  # the training goes on
    transfer.wait()
    assert transfer.arrived
    assert [part.tolist() for part in transfer.parts()] == [
        *([0, 3, 6, 9, 12, 15, 18], [2.5], [1, 2], [], [0, 2, 1, 3], [1e300])
    ]
    assert Transfer([]).parts() == []


def test_it_has_arrived_when_every_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def __init__(self) -> None:
            self.reached = False

        def query(self) -> bool:
            return self.reached

        def synchronize(self) -> None:
            self.reached = True

    events = [Event(), Event()]
    left = iter(events)
    monkeypatch.setattr("gradwatch.record.transfer._copy", lambda flat: (flat, next(left)))
    # Two types stand for two devices: each has a copy and an event of its own.
    transfer = Transfer([torch.ones(2), torch.ones(1).double()])
    events[0].reached = True
    assert not transfer.arrived
    transfer.wait()
    assert transfer.arrived
