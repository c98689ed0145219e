"""The watcher that does nothing: `GRADWATCH_MODE=disabled`."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

VARIABLE = "GRADWATCH_MODE"


class Disabled:
    """Answers like a watcher, records nothing and touches neither model nor files."""

    run_dir: Path | None = None
    overhead = 0.0
    should_stop = False
    recording = False

    def log(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Nothing."""

    def step(self) -> None:
        """Nothing."""

    def flush(self, timeout: float = 30.0) -> bool:
        """There is nothing to wait for."""
        return True

    def close(self) -> None:
        """Nothing."""

    def __enter__(self) -> "Disabled":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing."""
