"""Counting faults: a fault that was not seen to fire has tested nothing."""

import os
from dataclasses import dataclass, field

import pytest

WHOLE = "KILLS" in os.environ
"""`make test-faults` leaves nothing out; in `make test` some of what is alike is skipped."""


@dataclass
class Tally:
    """What was intended, what really happened, what went wrong."""

    name: str
    counted: int = 0
    fired: int = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        self.failures.append(text)

    def settle(self, capsys: pytest.CaptureFixture[str], least: int) -> None:
        """Print the three numbers and hold the suite to them."""
        with capsys.disabled():
            print(
                f"\n{self.name}: {self.counted} counted / {self.fired} fired / "
                f"{len(self.failures)} failed"
            )
        assert not self.failures, self.failures[:5]
        assert self.fired >= self.counted
        assert self.counted >= least
