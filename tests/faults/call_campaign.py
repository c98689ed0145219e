"""Every system call of the writer's thread goes wrong in turn. Run as a program: it forks.

    python -m tests.faults.call_campaign FOLDER FAULT [STRIDE] [sabotage]

A child writes a short run with several parts of each table and retention. At its k-th call
FAULT happens: `before`, `after` and `amid` (a write done by half) kill it; `EIO` and `ENOSPC` make
the call fail; `torn` writes half and fails, `short` writes a third and says so. So for k = 1,
1 + STRIDE, … until a child ends before its k-th call. Prints JSON: counted, fired, failures, calls.

With `sabotage` the thread removes a stream before the Parquet file has its name: the check must
notice.
"""

import contextlib
import errno
import json
import mmap
import os
import shutil
import signal
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import victim
from tests.faults.victim import Victim

from gradwatch.store import tables
from gradwatch.store import writer as writer_thread

CHANGING = ("open", "write", "fsync", "ftruncate", "rename", "unlink", "mkdir")
KILLS = ("before", "after", "amid")
STEPS = 160
WAIT = 30.0


class Calls:
    """Stands in for functions of `os`, in the writer's thread alone; the k-th call goes wrong."""

    def __init__(self, fault: str, number: int, note: mmap.mmap) -> None:
        self.fault, self.number, self.note = fault, number, note
        self.made = 0

    def install(self) -> None:
        names = ("write",) if self.fault in ("amid", "torn", "short") else CHANGING
        for name in (*names, "pread") if self.fault == "EIO" else names:
            setattr(os, name, self._stand_in(name, getattr(os, name)))

    def _stand_in(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not threading.current_thread().name.startswith("gradwatch-writer"):
                return real(*arguments, **options)
            self.made += 1
            if self.made != self.number:
                return real(*arguments, **options)
            self.note[8:24] = name.encode().ljust(16)
            return self._go_wrong(real, *arguments, **options)

        return call

    def _go_wrong(self, real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        match self.fault:
            case "before":
                os.kill(os.getpid(), signal.SIGKILL)
            case "after":
                with contextlib.suppress(OSError):  # such as a folder that is there already
                    real(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            case "amid":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            case "short":
                return real(arguments[0], arguments[1][: max(1, len(arguments[1]) // 3)])
            case "torn":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        code = errno.EIO if self.fault == "EIO" else errno.ENOSPC
        raise OSError(code, "made to fail")


def child(path: Path, seed: int, calls: Calls) -> int:
    """Write a run; note in shared memory how many steps are acknowledged, and the closing."""
    calls.install()
    written = Victim(path, seed)
    for step in written.batches(16):
        if not written.writer.flush(WAIT):
            return 2
        calls.note[:8] = struct.pack("<q", step)
        if step >= STEPS:
            break
    calls.note[24:25] = b"c"
    closed = written.writer.close(WAIT) and written.writer.finished.is_set()
    return 0 if closed and not written.writer.dropped else 3


def hasten() -> None:
    """Remove the stream before the Parquet file that has its rows is there: a saboteur."""
    real = tables.write_beside

    def write_beside(folder: int, path: str, data: memoryview) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.replace(".parquet", ".arrows"), dir_fd=folder)
        real(folder, path, data)

    setattr(tables, "write_beside", write_beside)  # noqa: B010


def one(path: Path, seed: int, fault: str, number: int) -> tuple[str, list[str]]:
    """The name of the call that went wrong, "" if the run has fewer; and what is wrong."""
    note = mmap.mmap(-1, 32)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child(path, seed, Calls(fault, number, note))
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    name = note[8:24].rstrip(b"\0 ").decode()
    (acknowledged,) = struct.unpack("<q", note[:8])
    if name and fault in KILLS:
        if not os.WIFSIGNALED(status):
            return name, ["was not killed"]
        closed = None if note[24:25] == b"c" else False
        return name, victim.problems(
            path, seed, acknowledged, closed=closed
        ) if acknowledged else []
    found = victim.problems(path, seed, acknowledged, closed=True)
    found += victim.coarse(path, seed, acknowledged)
    code = os.waitstatus_to_exitcode(status)
    return name, found if code == 0 else [f"ended with {code}", *found]


def main() -> None:
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    stride = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    victim.hurry()
    writer_thread.SYNC_SECONDS = 0.02
    if "sabotage" in sys.argv:
        hasten()
    seed, number = 3, 1  # with retention
    calls: Counter[str] = Counter()
    failures: list[str] = []
    while True:
        path = folder / f"{fault}{number}"
        name, found = one(path, seed, fault, number)
        failures += [f"{fault} at call {number} ({name}): {text}" for text in found]
        if not found:
            shutil.rmtree(path)
        if not name:
            break
        calls[name] += 1
        number += stride
    total = sum(calls.values())
    print(json.dumps({"counted": total, "fired": total, "calls": calls, "failures": failures}))


if __name__ == "__main__":
    main()
