"""`GRADWATCH_MODE`: whether `watch` records, and whether it says a line at the end."""

import os
from enum import StrEnum

VARIABLE = "GRADWATCH_MODE"


class Mode(StrEnum):
    """What the variable asks for."""

    ON = "on"
    QUIET = "quiet"
    """Record, and say nothing at the end."""
    OFF = "off"
    """Record nothing."""
    UNKNOWN = "unknown"
    """A value that means nothing: as if it were not set."""


MEANINGS = {
    **dict.fromkeys(("", "on", "1", "true", "enabled"), Mode.ON),
    "quiet": Mode.QUIET,
    **dict.fromkeys(("off", "0", "false", "disabled"), Mode.OFF),
}


def mode() -> Mode:
    """What the environment says, in any case of letters."""
    return MEANINGS.get(os.environ.get(VARIABLE, "").strip().lower(), Mode.UNKNOWN)


def doubt() -> str:
    """What is wrong with the variable's value; empty where it is known."""
    if mode() is not Mode.UNKNOWN:
        return ""
    known = ", ".join(word for word in MEANINGS if word)
    return f"{VARIABLE} is {os.environ[VARIABLE]!r}, which means nothing; known are {known}"
