"""Kills writers at random instants and checks what is left. Run as a program: it forks.

    python -m tests.faults.kill_campaign FOLDER KILLS SEED [sabotage]

Prints JSON: counted, fired, failures, acknowledged. A kill counts only after an acknowledged flush.
With `sabotage` the child acknowledges what it never flushed: the check must notice.
"""

import json
import os
import random
import select
import shutil
import signal
import struct
import sys
import time
from pathlib import Path

from tests.faults import victim
from tests.faults.victim import Victim

LONGEST = 0.06
"""Seconds from the first acknowledgement to the kill: some parts are finished in between."""
STAGES = ("", "*/rows/*/*-[1-9]*.parquet", "*/coarse/*/*.parquet", "*/histograms/*/*.parquet", "")
"""What a writer has done before it may be killed, so that every kind of work is hit."""


def child(path: Path, seed: int, pipe: int, sabotage: bool) -> None:
    """Write until killed; after every acknowledged flush, tell the parent how far it is safe."""
    written = Victim(path, seed)
    awaited = STAGES[seed % len(STAGES)]
    for step in written.batches():
        if awaited and any(path.glob(awaited)):
            awaited = ""
        if sabotage or (written.writer.flush(30) and not awaited):
            os.write(pipe, struct.pack("<q", step))
        time.sleep(0.002)  # for the thread to finish parts


def one_kill(path: Path, seed: int, sabotage: bool) -> tuple[bool, int]:
    """Whether the kill fired, and how many steps had been acknowledged by then."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            child(path, seed, writer, sabotage)
        finally:
            os._exit(1)
    os.close(writer)
    acknowledged = b""
    if select.select([reader], [], [], 60)[0]:
        acknowledged = os.read(reader, 1 << 16)
        time.sleep(random.Random(seed).random() ** 2 * LONGEST)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    while more := os.read(reader, 1 << 16):
        acknowledged = (acknowledged + more)[-8:]
    os.close(reader)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed, struct.unpack("<q", acknowledged[-8:])[0] if acknowledged else 0


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sabotage = "sabotage" in sys.argv
    victim.hurry()
    kinds = ("rows", "coarse", "histograms", "scalars", "steps")
    counts = dict.fromkeys(["counted", "fired", "acknowledged", *kinds, "retention"], 0)
    failures: list[str] = []
    for number in range(kills * 2):
        if counts["counted"] == kills:
            break
        path = folder / f"kill{number}"
        killed, acknowledged = one_kill(path, seed + number, sabotage)
        if not acknowledged:
            shutil.rmtree(path, ignore_errors=True)
            continue
        counts["counted"] += 1
        counts["fired"] += killed
        counts["acknowledged"] += acknowledged
        for kind in kinds:
            counts[kind] += len([*path.glob(f"*/{kind}/**/*.parquet")])
        counts["retention"] += any(path.glob("*/rows/*/*")) and not any(
            path.glob("*/rows/*/00001*")
        )
        found = victim.problems(path, seed + number, acknowledged)
        failures += [f"kill {number}, seed {seed + number}: {text}" for text in found]
        if found and not sabotage:
            print(failures[-1], file=sys.stderr, flush=True)
        else:
            shutil.rmtree(path)
        if number % 500 == 499:
            print(json.dumps(counts), len(failures), "failed", file=sys.stderr, flush=True)
    work = ["acknowledged", *kinds, "retention"]
    print(json.dumps({**counts, "work": work, "failures": failures}))


if __name__ == "__main__":
    main()
