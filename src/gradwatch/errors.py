"""The one exception users see: a sentence that says what was expected, seen, and what to do."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line."""

    HEALTHY = 0
    FINDINGS = 1
    USAGE = 2
    UNREADABLE = 3


class GradwatchError(Exception):
    """Raised with a sentence for a person; the command line prints it and exits with the code."""

    def __init__(self, message: str, exit_code: Exit = Exit.UNREADABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
