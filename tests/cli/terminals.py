"""The program at a terminal of a given width, as a person has it."""

import io
import os
import pty
import subprocess
import sys
import termios
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from gradwatch.cli.main import main


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


def said_at_a_terminal(words: list[str], columns: int = 80) -> tuple[int | str | None, str]:
    """Exit code, and all that `gradwatch WORDS` sends to a terminal, errors too; in this process,
    which takes no time to start."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    heard = bytearray()

    def listen() -> None:
        try:
            while piece := os.read(ours, 4096):
                heard.extend(piece)
        except OSError:  # the other side is closed
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    code: int | str | None = None
    terminal = io.TextIOWrapper(io.FileIO(theirs, "w"), "utf-8", write_through=True)
    with terminal, redirect_stdout(terminal), redirect_stderr(terminal):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    listener.join()
    os.close(ours)
    return code, heard.decode().replace("\r\n", "\n")
