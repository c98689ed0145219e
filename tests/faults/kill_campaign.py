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

import numpy as np
from tests.store.trial import subjects

from gradwatch.errors import GradwatchError
from gradwatch.run import EventKind
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Retention, Writer, open_run, writer_thread

TENSORS = 3


def rows_of(step: int, seed: int) -> np.ndarray:
    rows = np.zeros(TENSORS, row_dtype(Family.UPDATE))
    rows["update_norm"] = [step + 1 + number / 4 for number in range(TENSORS)]
    rows["update_ratio"] = (seed % 97) / 128
    return rows


def child(path: Path, seed: int, pipe: int, sabotage: bool) -> None:
    """Write until killed; after every acknowledged flush, tell the parent how far it is safe."""
    writer_thread.SEAL_BYTES = 6_000
    keep = Retention(bytes=40_000) if seed % 3 == 0 else None
    writer = Writer.create(path, name="victim", keep=keep)
    ids = writer.declare(subjects(TENSORS))
    states = np.zeros(TENSORS, np.uint8)
    chance = random.Random(seed)
    step, ready = 0, seed % 2 == 0
    while True:
        for _ in range(chance.randint(1, 12)):
            writer.put(Family.UPDATE, step, ids, rows_of(step, seed), states)
            writer.scalars(step, {"loss": 1.0 / (step + 1)})
            step += 1
        ready = ready or any(
            path.glob("*/rows/*/*.parquet")
        )  # half of the kills hit a writer that seals
        if sabotage or (writer.flush(30) and ready):
            os.write(pipe, struct.pack("<q", step))


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
        time.sleep(random.Random(seed).random() ** 3 * 0.4)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    while more := os.read(reader, 1 << 16):
        acknowledged = (acknowledged + more)[-8:]
    os.close(reader)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed, struct.unpack("<q", acknowledged[-8:])[0] if acknowledged else 0


def examine(path: Path, seed: int, acknowledged: int) -> list[str]:
    """What is wrong with the run the dead writer left."""
    try:
        run = open_run(path)
        norm, state = run.series["update_norm"], run.state("update_norm")
        ratio, loss = run.series["update_ratio"], run.scalars["loss"]
    except (GradwatchError, KeyError) as error:
        return [f"cannot be read: {error}"]
    wrong = []
    if run.steps.tolist() != list(range(len(run.steps))) or len(run.steps) < acknowledged:
        wrong.append(f"{len(run.steps)} steps of {acknowledged} acknowledged")
    thinned = any(event.kind is EventKind.RETENTION for event in run.events)
    valued = state == State.MEASURED
    if not thinned and not valued[:acknowledged].all():
        wrong.append("rows are missing")
    true = np.add.outer(run.steps + 1.0, np.arange(TENSORS) / 4)
    if not (norm[valued] == true[valued]).all() or not (ratio[valued] == (seed % 97) / 128).all():
        wrong.append("wrong values")
    if not np.array_equal(loss[:acknowledged], 1.0 / (run.steps[:acknowledged] + 1)):
        wrong.append("wrong or missing scalars")
    wrong += [event.text for event in run.events if event.kind is EventKind.DAMAGE]
    if run.info["complete"]:
        wrong.append("a killed run says that it is complete")
    return wrong


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sabotage = "sabotage" in sys.argv
    counts = {"counted": 0, "fired": 0, "acknowledged": 0, "sealed": 0}
    failures: list[str] = []
    for number in range(kills * 2):
        if counts["counted"] == kills:
            break
        path = folder / f"kill{number}"
        killed, acknowledged = one_kill(path, seed + number, sabotage)
        if not acknowledged:
            continue
        counts["counted"] += 1
        counts["fired"] += killed
        counts["acknowledged"] += acknowledged
        counts["sealed"] += len(list(path.glob("*/rows/*/*.parquet")))
        found = examine(path, seed + number, acknowledged)
        failures += [f"kill {number}: {text}" for text in found]
        shutil.rmtree(path)
    print(json.dumps({**counts, "failures": failures}))


if __name__ == "__main__":
    main()
