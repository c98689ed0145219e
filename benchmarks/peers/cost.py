"""What each watcher costs a training step, on the same models, in turn.

Each watcher has a copy of the model and trains it in turn with the others, one torch thread, by
the thread time of the training thread: what others do in threads and processes of their own (our
writer, TensorBoard's, wandb's service) is not counted for anybody. A cost is the median watched
step less the median bare step. Ours is also given as the time inside our hooks, the mean over the
steps of a cycle of the cadence: a difference of steps cannot show what is under their noise.
"""

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, median

import torch

import gradwatch.kernel as kernel
import gradwatch.record.schedule as pace
from benchmarks.models import Bench, gpt, mlp, resnet
from benchmarks.peers.diagnosers import quiet
from benchmarks.peers.watchers import CYCLE, Folder, Make, Ours, Watching, available
from benchmarks.timing import read_once

MODELS: dict[str, Callable[[], Bench]] = {"mlp": mlp, "gpt": gpt, "resnet": resnet}
WARM_UP = 2
BUDGET = 0.01
"""The default of `watch`."""
SMALL = 0.1
"""Seconds: a step short enough that the budget can settle within this benchmark."""


class Lane:
    """One watcher, its copy of the model, and how long its steps took."""

    def __init__(self, bench: Bench, make: Make, folder: Path) -> None:
        self.bench, self.model = bench, copy.deepcopy(bench.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.watching = make(self.model, self.optimizer, folder)
        self.steps = 0
        self.times: list[float] = []

    def step(self) -> None:
        began = time.thread_time()
        self.watching.before(self.steps)
        self.optimizer.zero_grad()
        loss = self.bench.loss(self.model)
        loss.backward()
        self.optimizer.step()
        self.watching.after(self.steps, loss)
        taken = time.thread_time() - began
        self.steps += 1
        if self.steps > 1:  # the first claims memory and loads code
            self.times.append(taken)

    @property
    def usual(self) -> float:
        return median(self.times)


def main(models: list[str], rounds: int) -> None:
    torch.set_num_threads(1)
    quiet()
    print(f"instruction set {kernel.instruction_set}, one torch thread, every step", flush=True)
    for name in models:
        torch.manual_seed(0)
        bench = MODELS[name]()
        began = time.perf_counter()
        with Folder() as folder:
            lines = measure(bench, folder, rounds)
        print(f"\n{bench.summary}, {time.perf_counter() - began:.0f} s")
        for line in lines:
            print(line, flush=True)


def measure(bench: Bench, folder: Path, rounds: int) -> list[str]:
    """Train all copies in turn; the lines of the table."""
    makers, missing = available()
    bare, ours = Lane(bench, Watching, folder), Lane(bench, Ours, folder)
    peers = {name: Lane(bench, make, folder) for name, make in makers.items()}
    # A small model has steps to spare: more of them, against the noise.
    for _ in range(WARM_UP):
        bare.step()
    cycles = 8 if bare.usual < SMALL else 1
    turns = CYCLE * cycles
    due = {i * (turns - 1) // (rounds * cycles) for i in range(rounds * cycles + 1)}
    assert isinstance(ours.watching, Ours)
    for _ in range(WARM_UP):
        ours.step()
    floors: list[float] = []
    inside: list[list[float]] = [[] for _ in range(CYCLE)]
    for turn in range(turns):
        if turn in due:
            bare.step()
            floors.append(read_once(bare.model))
            for lane in peers.values():
                lane.step()
        spent = ours.watching.spent
        ours.step()
        inside[turn % CYCLE].append(ours.watching.spent - spent)
    for lane in (bare, ours, *peers.values()):
        lane.watching.close()
    hooks = fmean(median(costs) for costs in inside)
    costs = {name: lane.usual - bare.usual for name, lane in peers.items()}
    rows = [
        ("read every gradient once", median(floors)),
        ("ours, inside our hooks", hooks),
        ("ours, step less bare", ours.usual - bare.usual),
    ]
    if hooks > BUDGET * bare.usual and bare.usual < SMALL:
        rows.append(("ours, default budget", budgeted(bench, folder, bare.usual)))
    rows += costs.items()
    out = [f"{'':26}{'ms a step':>10}{'of the step':>13}{'÷ ours':>8}"]
    out.append(f"{'bare step':26}{bare.usual * 1e3:10.2f}")
    out += [f"{n:26}{c * 1e3:10.3f}{c / bare.usual:13.2%}{c / hooks:8.1f}" for n, c in rows]
    if "wandb.watch" in costs:
        out.append(f"ours : wandb.watch = 1 : {costs['wandb.watch'] / hooks:.0f}")
    if hooks > BUDGET * bare.usual >= BUDGET * SMALL:
        out.append("default budget: stretches the cadence; steps too long to let it settle here")
    return out + [f"{name} left out: {why}" for name, why in missing.items()]


def budgeted(bench: Bench, folder: Path, bare: float) -> float:
    """Seconds a step under the default budget, alone, once the cadence has settled.

    By the wall clock, as the budget itself. The two seconds that are free at the start of a run
    are taken away, or nothing would be seen.
    """
    free, pace.ALLOWANCE = pace.ALLOWANCE, 0.0
    try:
        lane = Lane(
            bench, partial(Ours, budget=BUDGET, clock=time.perf_counter), folder / "budgeted"
        )
        assert isinstance(lane.watching, Ours)
        half = min(800, max(128, int(3 / bare)))
        for _ in range(half):
            lane.step()
        spent, began = lane.watching.spent, time.perf_counter()
        for _ in range(half):
            lane.step()
        share = (lane.watching.spent - spent) / (time.perf_counter() - began)
        lane.watching.close()
    finally:
        pace.ALLOWANCE = free
    return share / (1 - share) * bare
