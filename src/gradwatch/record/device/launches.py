"""What we queue on devices: how many operations at most, and how long they took there."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from gradwatch.record.device.transfer import mark

MOST_LAUNCHES = 500
"""A stream holds about a thousand operations; who launches more waits for the device."""

Key = TypeVar("Key", bound=Hashable)


class LaunchLimit(Generic[Key]):
    """Lets the hooks of a step queue so many operations; who comes too late is first next time."""

    def __init__(self) -> None:
        self.left = MOST_LAUNCHES
        """Operations that may still be queued in this step."""
        self._waiting: dict[Key, int] = {}
        self._kept: dict[Key, int] = {}
        self.refused: set[Key] = set()
        """Who came too late in this step."""

    def begin(self) -> None:
        """A new step: room is kept for those that wait, longest first."""
        waiting, self._waiting, self._kept = self._waiting, {}, {}
        self.left, self.refused = MOST_LAUNCHES, set()
        for key, launches in waiting.items():
            if launches <= self.left:
                self.left -= launches
                self._kept[key] = launches
            else:
                self._waiting[key] = launches

    def allows(self, key: Key, launches: int) -> bool:
        """Whether so many operations may be queued for this one now."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.left += kept
        elif launches > self.left:
            self._waiting.setdefault(key, launches)
            self.refused.add(key)
            return False
        self.left -= launches
        self._waiting.pop(key, None)
        return True


@dataclass
class LaunchSpan:
    """Two events with launches of ours between them."""

    device: torch.device
    start: Any
    end: Any = None
    times: int = 1
    """How many spans like this one there were; only this one was timed."""


class LaunchTimes:
    """How long our launches took on the devices, by step; nobody waits to find out."""

    def __init__(self) -> None:
        self._steps: dict[int, list[LaunchSpan]] = {}
        self._without_clock = {"cpu"}
        """Types of devices whose events do not tell the time."""

    def begin(self, devices: Sequence[torch.device]) -> list[LaunchSpan]:
        """Launches on these devices follow; `end` is to be called after them."""
        return [
            LaunchSpan(device, start)
            for device in devices
            if (start := self._mark(device)) is not None
        ]

    def end(self, step: int, spans: Sequence[LaunchSpan]) -> None:
        """The launches that began there are all queued."""
        for span in spans:
            span.end = self._mark(span.device)
            if span.end is not None:
                self._steps.setdefault(step, []).append(span)

    def settled(self, before: int) -> Sequence[tuple[int, float]]:
        """Steps before this one whose launches are over, and the seconds those took; once each."""
        if not self._steps:
            return ()
        found = []
        for step in [step for step in self._steps if step < before]:
            spans = self._steps[step]
            if not all(span.end.query() for span in reversed(spans)):
                break
            del self._steps[step]
            found.append((step, self._seconds(spans)))
        return found

    def _seconds(self, spans: Sequence[LaunchSpan]) -> float:
        """The sum on the device where it is largest: devices work at the same time."""
        seconds: dict[torch.device, float] = {}
        for span in spans:
            try:
                taken = span.start.elapsed_time(span.end) * span.times / 1000
            except (AttributeError, NotImplementedError, RuntimeError):
                self._without_clock.add(span.device.type)
                continue
            seconds[span.device] = seconds.get(span.device, 0.0) + taken
        return max(seconds.values(), default=0.0)

    def _mark(self, device: torch.device) -> Any:
        if device.type in self._without_clock:
            return None
        try:
            return mark(device, timed=True)
        except (AttributeError, TypeError, NotImplementedError, RuntimeError):
            self._without_clock.add(device.type)
            return None
