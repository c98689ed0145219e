"""What watching costs a training step: the whole price, beside the bare step and the read floor.

A model trains in short rounds, bare and watched in turn, with one torch thread. What counts is what
a watched step takes more than a bare one of the neighbouring round, by the time of the training's
thread and by the clock on the wall: so also what the training loses because its caches were emptied
or because the writing thread ran beside it. Both kinds of round train the same model in the same
memory, for twins differ by several per cent for no other reason than where theirs lies.

"said" is what the watcher itself says it took (its clock made the thread's), "floor" reading every
gradient once. What counts is the larger one of what is said and the lower end of the difference,
whose error hides all that is under a per cent of a long step. Each row is a process of its own,
which keeps the memory it has: page faults alone move short steps by 20 %.
`python -m benchmarks.watch MODEL VARIANT` gives one row, `python -m benchmarks watch` all.
"""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.models import Bench, gpt, many, mlp, resnet
from benchmarks.timing import count_by, read_once
from gradwatch import kernel
from gradwatch.record import Watcher, schedule, watch

CYCLE = 16
"""Steps after which the default cadence repeats."""
SHORT = 0.1
"""Seconds: a step of which there are enough to make rounds of a fifth of a second."""
SECONDS = float(os.environ.get("GRADWATCH_BENCH_SECONDS", "10"))
"""For the rounds of one row; where steps are long there are at least PAIRS pairs of rounds."""
PAIRS = int(os.environ.get("GRADWATCH_BENCH_ROUNDS", "4"))
PLANTED = 200e-6
MODELS = {"mlp": mlp, "many": many, "gpt": gpt, "resnet": resnet}
VARIANTS: dict[str, dict[str, Any]] = {
    "gradients": {"record": ("gradients",), "every": 1},
    "activations": {"record": ("activations",), "budget": 1.0},
    "default": {"budget": 1.0},
    "everything": {"every": 1},
    "budget": {},
}
BARS = {
    ("mlp", "gradients"): 0.04,
    ("mlp", "default"): 0.07,
    ("mlp", "everything"): 0.25,
    ("many", "gradients"): 0.06,
    ("gpt", "default"): 0.016,
    ("resnet", "default"): 0.016,
    **{(model, "budget"): 0.011 for model in MODELS},
}
"""Of the bare step."""
FLOORS = {("gpt", "gradients"): 1.5, ("resnet", "gradients"): 1.5}
"""Times reading the gradients once."""
CALM = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}


def main() -> None:
    print(f"instruction set {kernel.instruction_set}, one thread, % of the bare step")
    titles = ("bare ms", "floor", "wall", "thread", "±", "said", "counts", "÷ floor", "bar")
    print(f"{'':20s}" + "".join(f"{title:>9s}" for title in titles), flush=True)
    for model in MODELS:
        for variant in VARIANTS:
            line = [sys.executable, "-m", "benchmarks.watch", model, variant]
            subprocess.run(line, env=os.environ | CALM, check=True)
    torch.set_num_threads(1)
    idle()
    flat()
    planted()


class Price(NamedTuple):
    """Seconds a step, as the training's thread and the wall count them."""

    thread: float
    wall: float


def row(model: str, variant: str) -> None:
    """One line of the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bench = MODELS[model]()
    optimizer = torch.optim.AdamW(bench.model.parameters(), 1e-4)
    rounds(bench, optimizer, 2)
    bar = BARS.get((model, variant))
    title = f"{model:8s}{variant:12s}"
    if variant == "budget":
        share = budgeted(bench, optimizer)
        print(f"{title}{'':54s}{share:9.2%}{'':9s}" + verdict(share, bar), flush=True)
        return
    bare, more, said, floor = compare(bench, optimizer, variant)
    thread, error = middle([price.thread for price in more])
    wall, _ = middle([price.wall for price in more])
    counted = max(said, thread - 2 * error)
    if (model, variant) in FLOORS:
        bar = FLOORS[model, variant] * floor / bare.thread
    seconds = (floor, wall * bare.thread / bare.wall, thread, error, said, counted)
    line = title + f"{bare.thread * 1e3:9.2f}"
    line += "".join(f"{some / bare.thread:9.2%}" for some in seconds) + f"{counted / floor:9.2f}"
    line += verdict(counted / bare.thread, bar)
    if abs(said - thread) > thread / 4 + 2 * error:
        line += "  what is said is off by more than a quarter"
    print(line, flush=True)


def verdict(share: float, bar: float | None) -> str:
    return "" if bar is None else f"{bar:9.2%}{' MISSED' if share > bar else ''}"


def middle(values: list[float]) -> tuple[float, float]:
    """The median and its standard error, by the median absolute deviation."""
    mid = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - mid) for value in values)
    return mid, 1.2533 * spread / len(values) ** 0.5


def compare(
    bench: Bench, optimizer: torch.optim.Optimizer, variant: str
) -> tuple[Price, list[Price], float, float]:
    """A bare step, what watched rounds take more a step, what is said of it, and the floor."""
    count_by(time.thread_time)
    first = rounds(bench, optimizer, 2).wall
    steps = CYCLE if "every" not in VARIANTS[variant] else 4
    if first < SHORT:
        steps = CYCLE * max(1, round(0.2 / first / CYCLE))
    bares, more, said, floors = [], [], [], []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(more) < PAIRS:
        pair = {}
        for watched in (True, False) if len(more) % 2 else (False, True):
            gc.collect()
            if watched:
                with recording(bench, optimizer, **VARIANTS[variant]) as watcher:
                    rounds(bench, optimizer, 2)  # claims memory, loads code
                    spent = watcher.guard.timer.spent
                    pair[watched] = rounds(bench, optimizer, steps)
                    said.append((watcher.guard.timer.spent - spent) / steps)
                continue
            rounds(bench, optimizer, 1)
            pair[watched] = rounds(bench, optimizer, steps)
            floors.append(read_once(bench.model))
        bares.append(pair[False])
        more.append(Price(*(w - b for w, b in zip(pair[True], pair[False], strict=True))))
    bare = Price(*(statistics.median(times) for times in zip(*bares, strict=True)))
    return bare, more, statistics.median(said), statistics.median(floors)


def rounds(bench: Bench, optimizer: torch.optim.Optimizer, steps: int) -> Price:
    thread, wall = time.thread_time(), time.perf_counter()
    for _ in range(steps):
        train(bench, optimizer)
    return Price((time.thread_time() - thread) / steps, (time.perf_counter() - wall) / steps)


def budgeted(bench: Bench, optimizer: torch.optim.Optimizer) -> float:
    """The share of all time under the default budget, its free seconds used up, once it settled.

    As the watcher says: what the twin shows of one per cent is noise.
    """
    schedule.ALLOWANCE = 0.0
    with recording(bench, optimizer) as watcher:
        share = 0.0
        for least in (SECONDS, 2 * SECONDS):
            spent, began, steps = watcher.guard.timer.spent, time.perf_counter(), 0
            while time.perf_counter() - began < least or steps < 2 * CYCLE:
                train(bench, optimizer)
                steps += 1
            share = (watcher.guard.timer.spent - spent) / (time.perf_counter() - began)
    return share


@contextmanager
def recording(bench: Bench, optimizer: torch.optim.Optimizer, **options: Any) -> Iterator[Watcher]:
    """A watcher that writes to a folder of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # From step 14 on: the first ten steps, which record everything, are not the usual ones.
        made = watch(bench.model, optimizer, run=Path(folder) / "run", step=CYCLE - 2, **options)
        assert isinstance(made, Watcher)
        with made as watcher:
            yield watcher
            watcher.flush()


def train(bench: Bench, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    bench.loss(bench.model).backward()
    optimizer.step()


def idle(steps: int = 100) -> None:
    """Steps that record nothing, on the MLP: between recorded ones, and in a long stretch."""
    bench = mlp()
    optimizer = torch.optim.SGD(bench.model.parameters(), 0.0)
    for what, every in (("between recorded ones", 3), ("in a long stretch", 1 << 30)):
        with recording(bench, optimizer, every=every, record={"gradients"}) as watcher:
            costs = []
            for _ in range(steps):
                spent = watcher.guard.timer.spent
                train(bench, optimizer)
                costs.append(watcher.guard.timer.spent - spent)
        low = sorted(costs)[: steps // 3]  # of three steps at most two record nothing
        print(f"a step that records nothing, {what}: {statistics.median(low) * 1e6:.1f} µs")


def flat(thousands: int = 10, tensors: int = 50) -> None:
    """Gradients and histograms on every step: the last thousand cost what the second did."""
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(3, 3)) for _ in range(tensors))
    for parameter in model:
        parameter.grad = torch.randn(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    costs = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = watch(
            model, optimizer, run=Path(folder) / "run", every=1, record=("gradients", "histograms")
        )
        assert isinstance(made, Watcher)
        with made as watcher:
            for _ in range(thousands):
                times = [(time.perf_counter(), time.thread_time())]
                for _ in range(1000):
                    optimizer.step()
                    times.append((time.perf_counter(), time.thread_time()))
                costs.append(1e3 * np.median(np.diff(times, axis=0), axis=0))
            background = watcher.background
    wall, own = costs[-1] / costs[1] - 1
    print(
        f"a step with gradients and histograms of {tensors} tensors: second thousand "
        f"{costs[1][0]:.2f} ms, last of {thousands} {costs[-1][0]:.2f} ms ({wall:+.1%}; of the "
        f"thread's own time {own:+.1%}); the writing thread takes {background:.1%} of a processor"
    )


def planted() -> None:
    """A benchmark that cannot see a sleep of 200 µs in the hook measures nothing."""
    bench = mlp()
    optimizer = torch.optim.AdamW(bench.model.parameters(), 1e-4)
    found = []
    for pause in (0.0, PLANTED):
        with recording(bench, optimizer, every=1) as watcher:
            timer, inner = watcher.guard.timer, watcher._hooks.before

            def slow(*call: Any, inner: Any = inner, pause: float = pause) -> None:
                if pause:
                    time.sleep(pause)
                inner(*call)

            watcher._hooks.before = slow
            costs = []
            for _ in range(60):
                spent = timer.spent
                train(bench, optimizer)
                costs.append(timer.spent - spent)
        found.append(min(costs))
    seen = found[1] - found[0]
    word = "seen" if seen >= 0.75 * PLANTED else "NOT SEEN: these figures mean nothing"
    print(f"planted sleep of {PLANTED * 1e6:.0f} µs: {seen * 1e6:.0f} µs {word}")
    if seen < 0.75 * PLANTED:
        raise SystemExit(1)


if __name__ == "__main__":
    row(*sys.argv[1:])
