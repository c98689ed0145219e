"""Writes to, and reads from, what behaves like a network file system. Run as a program: it forks.

    LD_PRELOAD=nfs.so python -m tests.faults.nfs_campaign FOLDER FAULT [STRIDE [END]] [sabotage]

`nfs.c` says what happens. A child writes a short run with several parts; with FAULT `vanish` its
k-th rename kills it in the middle, with `resent` and `late` its k-th call is told to have failed;
so for k = 1, 1 + STRIDE, … With `stale` it writes in peace, and readers with an old view look at it
all the while, in STRIDE runs. Prints JSON: counted, fired, failures. With `sabotage` the writer
trusts a failed sync: the check must notice.
"""

import ctypes
import json
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute  # noqa: F401 - loaded before files lie: pyarrow imports it when first used
from tests.faults import victim
from tests.faults.victim import Victim

from gradwatch.errors import GradwatchError
from gradwatch.run import EventKind, Run
from gradwatch.stats import State
from gradwatch.store import open_run
from gradwatch.store import writer as writer_thread
from gradwatch.store.tables import GrowingFile

FAULTS = {"vanish": 1, "resent": 2, "late": 3, "stale": 4}
STEPS = 130
WAIT = 30.0
LOOKS = 15
SEED = 3  # with retention


def arm(path: Path, fault: str, number: int = 0, seed: int = 0) -> None:
    ctypes.CDLL(None).nfs_arm(str(path).encode(), FAULTS[fault], number, seed)


def write(path: Path, note: int) -> int:
    """Write a run; tell how many steps are acknowledged, and at the end 0 if all is well."""
    written = Victim(path, SEED)
    for step in written.batches(16):
        if not written.writer.flush(WAIT):
            return 2
        os.write(note, struct.pack("<q", step))
        if step >= STEPS:
            break
    closed = written.writer.close(WAIT) and written.writer.finished.is_set()
    return 0 if closed and not written.writer.dropped else 3


def one(path: Path, fault: str, number: int) -> tuple[bool, list[str]]:
    """Whether the fault happened, and what is wrong with what is left."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            arm(path, fault, number)
            code = write(path, writer)
            os.write(writer, struct.pack("<q", -ctypes.CDLL(None).nfs_fired()))
        finally:
            os._exit(code)
    os.close(writer)
    raw = b""
    while more := os.read(reader, 1 << 16):
        raw += more
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told = [value for (value,) in struct.iter_unpack("<q", raw)]
    acknowledged = max(told, default=0)
    killed = code < 0
    found = victim.problems(path, SEED, acknowledged, closed=None if killed else True)
    if code > 0:
        found.append(f"ended with {code}")
    return killed or min(told, default=0) < 0, found if acknowledged or code > 0 else []


# -- readers elsewhere -----------------------------------------------------------------------------


def wrong_numbers(run: Run) -> Iterator[str]:
    """A view of any age may have less; what it has is right."""
    steps, valued = run.steps, run.state("update_norm") == State.MEASURED
    yield from victim.wrong_norms(run, "update_norm")
    loss = run.scalars.get("loss", np.full(len(steps), np.nan))
    logged = ~np.isnan(loss)
    if not (loss[logged] == 1.0 / (steps[logged] + 1)).all():
        yield "wrong scalars"
    lost = ~valued.all(axis=1) & ~victim.taken(run)
    told = any(event.kind is EventKind.DAMAGE for event in run.events)
    if lost[: valued.any(axis=1).nonzero()[0].max(initial=0)].any() and not told:
        yield "rows are missing in the middle, and nothing says so"
    if run.info["complete"] and not told and len(steps) < STEPS:
        yield f"complete with {len(steps)} steps"


def stale(path: Path, seed: int, looks: int) -> tuple[int, int, list[str]]:
    """How many looks were given a run, lies told, and what was wrong."""
    pid = os.fork()
    if pid == 0:
        try:
            arm(path, "vanish")  # a client that keeps for others what it takes away
            for _ in Victim(path, SEED).batches(4):
                time.sleep(0.002)
        finally:
            os._exit(1)
    failures: list[str] = []
    opened = 0
    while not any(path.glob("*/steps/*")) and not os.waitpid(pid, os.WNOHANG)[0]:
        time.sleep(0.01)
    arm(path, "stale", seed=seed)
    for _ in range(looks):
        try:
            failures += wrong_numbers(open_run(path))
            opened += 1
        except GradwatchError:
            pass
        except Exception as error:
            failures.append(repr(error))
    fired = ctypes.CDLL(None).nfs_fired()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ctypes.CDLL(None).nfs_arm(b"", 0, 0, 0)
    damage = [event.text for event in open_run(path).events if event.kind is EventKind.DAMAGE]
    return opened, fired, failures + [f"for good: {text}" for text in damage]


def main() -> None:
    folder, fault, *numbers = Path(sys.argv[1]), *sys.argv[2:]
    victim.hurry(20_000 if fault == "stale" else 2_500)
    writer_thread.SYNC_SECONDS = 0.02
    if "sabotage" in numbers:
        numbers.remove("sabotage")
        trusting = property(lambda file: False, lambda file, value: None)
        setattr(GrowingFile, "_doubtful", trusting)  # noqa: B010
    stride, last = [*map(int, numbers), *(1, 1 << 30)[len(numbers) :]]
    if fault == "stale":
        rounds = [stale(folder / f"stale{n}", n, LOOKS) for n in range(stride)]
        counted, lies = (sum(column) for column in list(zip(*rounds, strict=True))[:2])
        failures = [text for _, _, found in rounds for text in found]
        print(json.dumps({"counted": counted, "fired": lies, "failures": failures}))
        return
    counted, failures = 0, []
    for number in range(1, last, stride):
        path = folder / f"{fault}{number}"
        fired, found = one(path, fault, number)
        failures += [f"{fault} at call {number}: {text}" for text in found]
        if not found:
            shutil.rmtree(path)
        if not fired:
            break
        counted += 1
    print(json.dumps({"counted": counted, "fired": counted, "failures": failures}))


if __name__ == "__main__":
    main()
