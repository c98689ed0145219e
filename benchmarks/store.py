"""The run folder: what a row costs the writer's thread, the disk, the reader, and its neighbours.

With `large` (twenty minutes, 2 GB of disk): opening and drawing 10^6 steps of 500 tensors.

Rows of a gradient's columns as a network in training gives them: those with real numbers drift and
are noisy, the counts hardly change.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import gradwatch
from gradwatch.run import Subject
from gradwatch.stats import Family, Kind, row_dtype
from gradwatch.store import Retention, Writer, open_run

TENSORS = 50
RATE = 240_000
"""Rows per second beside which a thread wants to wake in time."""
SECONDS = 6.0
WAKES = 0.0005
REALS = ("norm", "mean", "std", "abs_mean", "abs_max", "min", "max", "skewness", "kurtosis")


def rows_of(steps: int) -> list[np.ndarray]:
    """A gradient's rows, each column of each tensor an AR(1) walk."""
    rng = np.random.default_rng(0)
    level = rng.normal(size=(TENSORS, len(REALS)))
    state = np.zeros_like(level)
    made = []
    for _ in range(steps):
        state = 0.95 * state + 0.1 * rng.normal(size=state.shape)
        rows = np.zeros(TENSORS, row_dtype(Family.GRAD))
        for column, name in enumerate(REALS):
            rows[f"grad_{name}"] = 1e-2 * np.exp(level[:, column] + state[:, column])
        rows["grad_cosine"] = np.tanh(state[:, 0])
        rows["grad_count"] = 65536
        made.append(rows)
    return made


def write(path: Path, rows: list[np.ndarray], steps: int, *, rate: float = 0.0) -> Writer:
    """Steps of these rows, over and over, at most `rate` rows per second; closed."""
    writer = Writer.create(path, name="bench")
    writer.patient = True
    ids = writer.declare([Subject(Kind.PARAMETER, f"layer{n}.weight") for n in range(TENSORS)])
    states = np.zeros(TENSORS, np.uint8)
    begun = time.perf_counter()
    for step in range(steps):
        writer.put(Family.GRAD, step, ids, rows[step % len(rows)].copy(), states)
        writer.scalars(step, {"loss": 1.0 / (step + 1)})
        wait = begun + step * TENSORS / rate - time.perf_counter() if rate else 0.0
        if wait > WAKES:
            time.sleep(wait)
    assert writer.flush(120.0)
    return writer


class Waker(threading.Thread):
    """Wakes every half millisecond, as a training does between two calls into C."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.late: list[float] = []
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            begun = time.perf_counter()
            time.sleep(WAKES)
            self.late.append(time.perf_counter() - begun - WAKES)

    def share(self) -> float:
        self.ended = True
        self.join()
        return float(np.mean(np.array(self.late) > WAKES))


def thread(folder: Path) -> None:
    rows = rows_of(200)
    idle = Waker()
    idle.start()
    time.sleep(2.0)
    before, waker = idle.share(), Waker()
    waker.start()
    steps = int(RATE * SECONDS / TENSORS)
    writer = write(folder / "thread", rows, steps, rate=RATE)
    late = waker.share()
    writer.close(120.0)
    size = sum(file.stat().st_size for file in (folder / "thread").rglob("*") if file.is_file())
    count = steps * TENSORS
    print(
        f"writer thread: {1e6 * writer.background / count:.2f} µs of CPU and {size / count:.0f} "
        f"bytes a row; beside {RATE:,} rows/s {100 * late:.2f} % of wakes are late by more than "
        f"{1e3 * WAKES} ms (idle: {100 * before:.2f} %); {writer.dropped} given up"
    )


def reading(folder: Path) -> None:
    writer = write(folder / "reading", rows_of(500), 10_000)
    writer.close(120.0)
    for _ in range(3):
        begun = time.process_time()
        run = open_run(folder / "reading")
        opened = time.process_time() - begun
        run.series["grad_norm"].sum()
        took = time.process_time() - begun - opened
    print(f"10^4 x {TENSORS}: open {1e3 * opened:.1f} ms, one statistic {1e3 * took:.0f} ms")


def keeping(folder: Path) -> None:
    """What `keep` leaves of a run that is many times as large."""
    path = folder / "keeping"
    writer = Writer.create(path, name="keep", keep=Retention(bytes=2_000_000))
    ids = writer.declare([Subject(Kind.PARAMETER, f"layer{n}.weight") for n in range(TENSORS)])
    for step, rows in enumerate(rows_of(6_000)):
        writer.put(Family.GRAD, step, ids, rows, np.zeros(TENSORS, np.uint8))
    writer.close(120.0)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"keep='2MB': {size / 1e6:.2f} MB of 6,000 steps x {TENSORS}")


def whole(folder: Path) -> None:
    """20,000 fast steps with `every=1`: nothing may be given up because we are slow."""
    import torch

    model = torch.nn.ParameterList(torch.randn(6) for _ in range(TENSORS))
    for parameter in model:
        parameter.grad = torch.randn_like(parameter)
    watcher = gradwatch.watch(model, run=folder / "whole", every=1)
    begun, steps = time.perf_counter(), 20_000
    for _ in range(steps):
        watcher.step()
    took = time.perf_counter() - begun
    watcher.close()
    run = open_run(folder / "whole")
    there = int(np.isfinite(run.series["grad_norm"]).all(axis=1).sum())
    print(f"{steps:,} x {TENSORS} with every=1 in {took:.1f} s: {there:,} steps are there")


def large(folder: Path) -> None:
    steps, tensors, spike = 1_000_000, 500, 123_457
    writer = Writer.create(folder / "large", name="large")
    ids = writer.declare([Subject(Kind.PARAMETER, f"layer{n}.weight") for n in range(tensors)])
    rng, states = np.random.default_rng(0), np.zeros(tensors, np.uint8)
    norms = np.exp(rng.normal(size=tensors)) * (1 + 0.1 * rng.normal(size=(97, tensors)))
    for step in range(steps):
        rows = np.zeros(tensors, row_dtype(Family.GRAD))
        rows["grad_norm"] = norms[step % len(norms)]
        rows["grad_norm"][16] += 1e6 * (step == spike)
        writer.put(Family.GRAD, step, ids, rows, states)
        while writer.backlog > 0.9:
            time.sleep(0.001)
    assert writer.flush(120.0)
    assert writer.close(120.0)
    # In a process of its own: the memory that writing took must not count as drawing's.
    reader = multiprocessing.get_context("spawn").Process(target=draw, args=(folder, spike))
    reader.start()
    reader.join()


def draw(folder: Path, spike: int) -> None:
    begun = time.perf_counter()
    run = open_run(folder / "large")
    count = len(run.steps)
    opened = time.perf_counter()
    window = run.window(points=400).stat("grad_norm")
    drawn = time.perf_counter()
    column, tensor = np.unravel_index(np.argmax(window.high), window.high.shape)
    assert tensor == 16
    assert window.first_steps[column] <= spike <= window.last_steps[column]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count:,} x 500: open {opened - begun:.2f} s, a map of all of it {drawn - opened:.2f} s, "
        f"{peak:.0f} MB"
    )


def main() -> None:
    os.environ.setdefault("GRADWATCH_MODE", "quiet")
    measures = (large,) if "large" in sys.argv else (thread, reading, keeping, whole)
    with tempfile.TemporaryDirectory() as folder:
        for measure in measures:
            measure(Path(folder))


if __name__ == "__main__":
    main()
