"""What is queued on a device is limited, and timed without waiting for it."""

from typing import Any

import pytest
import torch

from gradwatch.record.device import launches
from gradwatch.record.device.launches import LaunchLimit, LaunchTimes

ONE, OTHER = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def _room_for_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.record.device.launches.MOST_LAUNCHES", 10)


def looked_at(limit: LaunchLimit[str], names: str, launches: int) -> str:
    limit.begin()
    return "".join(name for name in names if limit.allows(name, launches))


def test_everyone_has_a_turn() -> None:
    limit: LaunchLimit[str] = LaunchLimit()
    turns = [looked_at(limit, "abcdefgh", 3) for _ in range(6)]
    assert turns[:2] == ["abc", "def"]
    assert limit.refused
    assert all(len(turn) == 3 for turn in turns)
    counts = [sum(name in turn for turn in turns) for name in "abcdefgh"]
    assert min(counts) >= 2


def test_without_need_nobody_waits() -> None:
    limit: LaunchLimit[str] = LaunchLimit()
    assert [looked_at(limit, "abc", 3) for _ in range(3)] == ["abc"] * 3
    assert limit.refused == set()


def test_room_kept_for_one_that_does_not_come_is_free_again() -> None:
    limit: LaunchLimit[str] = LaunchLimit()
    looked_at(limit, "abcd", 3)
    assert looked_at(limit, "abc", 3) == "ab"
    assert looked_at(limit, "abc", 3) == "abc"


class FakeEvent:
    """Done when the test says so; whoever asks for the time before would have to wait."""

    done = False

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return FakeEvent.done

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert FakeEvent.done
        return end.at - self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[torch.device, float]:
    """Milliseconds that each device has worked."""
    times = {ONE: 0.0, OTHER: 0.0}
    monkeypatch.setattr(FakeEvent, "done", False)
    monkeypatch.setattr(launches, "mark", lambda device, timed: FakeEvent(times[device]))
    return times


def test_nobody_waits_and_the_busiest_device_counts(clock: dict[torch.device, float]) -> None:
    times = LaunchTimes()
    for step in (4, 5):
        spans = times.begin([ONE, OTHER])
        clock[ONE] += 3
        clock[OTHER] += 20
        times.end(step, spans)
        clock[ONE] += 1000  # the user's own work
        spans = times.begin([ONE])
        clock[ONE] += 40
        times.end(step, spans)
    assert times.settled(6) == []
    FakeEvent.done = True
    assert times.settled(5) == [(4, pytest.approx(0.043))]
    assert times.settled(6) == [(5, pytest.approx(0.043))]
    assert list(times.settled(7)) == []


def test_a_span_may_stand_for_several(clock: dict[torch.device, float]) -> None:
    times = LaunchTimes()
    spans = times.begin([ONE])
    clock[ONE] += 2
    times.end(0, spans)
    spans[0].times += 4
    FakeEvent.done = True
    assert times.settled(1) == [(0, pytest.approx(0.010))]


@pytest.mark.parametrize("where", ["making", "reading"])
def test_a_device_without_a_clock_is_left_alone(
    where: str, clock: dict[torch.device, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    if where == "making":
        monkeypatch.setattr(launches, "mark", refuse)
    else:
        monkeypatch.setattr(FakeEvent, "elapsed_time", refuse)
    FakeEvent.done = True
    times = LaunchTimes()
    times.end(0, times.begin([ONE]))
    assert [seconds for _, seconds in times.settled(1)] in ([], [0.0])
    assert times.begin([ONE, OTHER]) == []


def test_the_cpu_has_no_events() -> None:
    assert LaunchTimes().begin([torch.device("cpu")]) == []
