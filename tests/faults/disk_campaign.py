"""Writes to a disk that fails, then works again, and checks what is there. Run as a program.

    python -m tests.faults.disk_campaign FOLDER full|inject|readonly

`full`: FOLDER is a small file system that
a filler keeps full. `inject`: somebody outside makes system calls fail. `readonly`: the folder
cannot be written to for a while. Prints JSON.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from tests.faults import victim
from tests.store.trial import subjects

from gradwatch.run import EventKind
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Writer, open_run
from gradwatch.store import writer as writer_thread

TENSORS = 3
PATIENCE = 60.0


class Campaign:
    def __init__(self, folder: Path, part_bytes: int = 4_000) -> None:
        victim.hurry(part_bytes)
        writer_thread.FIRST_WAIT, writer_thread.LONGEST_WAIT = 0.03, 0.05  # long enough to be seen
        self.path = folder / "run"
        self.writer = Writer.create(self.path, name="disk")
        self.ids = self.writer.declare(subjects(TENSORS))
        self.step = 0
        self.errors: set[int] = set()

    def put(self, count: int) -> None:
        for _ in range(count):
            rows = np.zeros(TENSORS, row_dtype(Family.UPDATE))
            rows["update_norm"] = self.step + np.arange(TENSORS)
            self.writer.put(Family.UPDATE, self.step, self.ids, rows, np.zeros(TENSORS, np.uint8))
            self.writer.scalars(self.step, {"loss": float(self.step)})
            self.step += 1

    def see(self) -> None:
        failure = self.writer.failure
        if failure is not None and failure.errno:
            self.errors.add(failure.errno)

    def until_error(self) -> None:
        """Put rows until the disk has refused one."""
        deadline = time.monotonic() + PATIENCE
        while not self.errors and time.monotonic() < deadline:
            self.put(20)
            self.writer.flush(0.05)
            self.see()

    def verdict(self) -> dict[str, object]:
        """All rows are acknowledged and there, none is wrong, nothing half is left."""
        flushed = self.writer.flush(PATIENCE)
        self.writer.close(PATIENCE)
        self.writer.finished.wait(PATIENCE)
        run = open_run(self.path)
        norm, state = run.series["update_norm"], run.state("update_norm")
        true = np.add.outer(run.steps, np.arange(TENSORS))
        good = state == State.MEASURED
        problems = []
        if not flushed:
            problems.append("rows are not acknowledged after the disk works again")
        if self.writer.dropped:
            problems.append(f"{self.writer.dropped} records were given up")
        if run.steps.tolist() != list(range(self.step)) or not good.all():
            problems.append(f"{good.sum()} of {self.step * TENSORS} rows are there")
        if not (norm[good] == true[good]).all():
            problems.append("wrong values")
        problems += [event.text for event in run.events if event.kind is EventKind.DAMAGE]
        finished = len(list(self.path.glob("*/rows/*/*.parquet")))
        return {"errors": sorted(self.errors), "problems": problems, "files": finished}


def full(folder: Path) -> dict[str, object]:
    campaign = Campaign(folder)
    assert campaign.writer.flush(PATIENCE)
    filler = os.open(folder / "filler", os.O_CREAT | os.O_WRONLY)
    fill(filler)
    campaign.until_error()
    os.ftruncate(filler, 0)
    campaign.put(200)
    return campaign.verdict()


def fill(filler: int) -> None:
    size = 65536
    while size:
        try:
            os.write(filler, bytes(size))
        except OSError:
            size //= 2


def inject(folder: Path) -> dict[str, object]:
    writer_thread.SYNC_SECONDS = 0.05
    campaign = Campaign(folder)
    for _ in range(30):
        campaign.put(10)
        campaign.writer.flush(10)
        campaign.see()
    return campaign.verdict()


def readonly(folder: Path) -> dict[str, object]:
    campaign = Campaign(folder)
    campaign.put(100)
    assert campaign.writer.flush(PATIENCE)
    folders = [path for path in campaign.path.rglob("*") if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    campaign.until_error()
    for path in folders:
        path.chmod(0o755)
    campaign.put(200)
    return campaign.verdict()


if __name__ == "__main__":
    campaigns = {"full": full, "inject": inject, "readonly": readonly}
    result = campaigns[sys.argv[2]](Path(sys.argv[1]))
    # not `write`: that call may be one that is made to fail
    raw = json.dumps(result).encode()
    target = os.open(Path(sys.argv[1]) / "result.json", os.O_CREAT | os.O_WRONLY)
    os.pwrite(target, raw, 0)
    if sys.argv[2] == "full":
        print(raw.decode())
