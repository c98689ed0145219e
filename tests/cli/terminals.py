"""The program at a terminal of a given width, as a person has it."""

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path


def at_a_terminal(
    words: list[str], *, columns: int = 80, where: Path | None = None, **environment: str
) -> str:
    """Standard output of `gradwatch WORDS`, colours and all; standard error is left out."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    decided = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "COLORTERM")
    kept = {name: value for name, value in os.environ.items() if name not in decided}
    process = subprocess.Popen(
        [sys.executable, "-m", "gradwatch", *words],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=where,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    out = b""
    try:
        while piece := os.read(ours, 4096):
            out += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
        process.wait(60)
    return out.decode().replace("\r\n", "\n")
