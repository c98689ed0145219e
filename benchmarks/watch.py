"""What watching costs a training step, beside the bare step, the read floor and a naive loop.

Two copies of each model train in turn, one bare and one watched, with one torch thread and the
writer running; after each watched step the floor (reading every gradient once) and the naive loop
(nine torch operations and `.item()` per tensor) run on the same gradients. Overhead is the time
inside our hooks. With one thread it is that thread's time, so that a busy neighbour does not count;
with all cores, and for the planted sleep, which takes none, it is the wall clock's.
"""

import copy
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import gradwatch.kernel as kernel
from benchmarks.models import Bench, gpt, mlp, resnet
from gradwatch.record import Watcher, watch
from gradwatch.record.signals import hooks
from gradwatch.record.tensors import gather

Clock = Callable[[], float]

CYCLE = 16
"""Steps after which the default cadence repeats."""
ROUNDS = int(os.environ.get("GRADWATCH_BENCH_ROUNDS", "1"))
BAR = 0.01
"""Of the step, on the GPT-like and the ResNet-like model."""
PLANTED = 200e-6


def main() -> None:
    for threads in sorted({1, torch.get_num_threads()}):
        table(threads)
    torch.set_num_threads(1)
    idle()
    flat()
    planted()


def table(threads: int) -> None:
    """Every model with so many torch threads; ours are as many."""
    torch.set_num_threads(threads)
    kernel.set_threads(threads)  # the floor's too
    torch.manual_seed(0)
    clock = time.thread_time if threads == 1 else time.perf_counter
    print(f"instruction set {kernel.instruction_set}, {threads} thread(s), % of the bare step")
    titles = ("floor", "ours", "gradients", "naive", "thread")
    print(f"{'':24s}{'bare ms':>10s}" + "".join(f"{title:>11s}" for title in titles))
    for make, bar in ((mlp, None), (gpt, BAR), (resnet, BAR)):
        bench = make()
        found = measure(bench, ROUNDS * (16 if bar is None else 1), clock)
        bare = found["bare"]
        shares = "".join(f"{found[title] / bare:11.2%}" for title in titles)
        print(f"{bench.summary[:24]:24s}{bare * 1e3:10.2f}{shares}")
        if bar is not None and found["ours"] > bar * bare:
            print(f"  MISSED: {found['ours'] / bare:.2%} of the step, the bar is {bar:.0%}")


def measure(bench: Bench, cycles: int, clock: Clock) -> dict[str, float]:
    """Seconds per step of each variant; `ours` is the mean over whole cycles of the cadence."""
    twin = copy.deepcopy(bench.model)
    bare_optimizer = torch.optim.AdamW(twin.parameters(), 1e-4)
    optimizer = torch.optim.AdamW(bench.model.parameters(), 1e-4)
    times: dict[str, list[float]] = {"bare": [], "floor": [], "naive": []}
    costs: list[float] = []
    with Recording(bench, optimizer, clock) as watcher:
        timer, steps = watcher.guard.timer, CYCLE * cycles + 2
        for step in range(steps):
            bare = timed(lambda: train(bench, twin, bare_optimizer), clock)
            spent = timer.spent
            train(bench, bench.model, optimizer)
            if step < 2:
                continue  # memory is claimed, code is loaded; the first records everything
            times["bare"].append(bare)
            costs.append(timer.spent - spent)
            gathered = gather([p.grad for p in bench.model.parameters()])
            times["floor"].append(timed(lambda held=gathered: kernel.read(held.batch), clock))
            times["naive"].append(timed(lambda: naive(bench.model), clock))
        watcher.flush()
        thread = watcher.background * timer.wall / steps
    found = {name: statistics.median(values) for name, values in times.items()}
    found["thread"] = thread
    found["ours"] = statistics.fmean(costs)
    found["gradients"] = statistics.median(costs)  # 12 of 16 steps record gradients alone
    return found


class Recording:
    """A watcher that writes to a folder of its own, at the default cadence, never stretched."""

    def __init__(
        self,
        bench: Bench,
        optimizer: torch.optim.Optimizer,
        clock: Clock = time.thread_time,
        **options: object,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bench, self.optimizer, self.options = bench, optimizer, options
        self.clock = clock

    def __enter__(self) -> Watcher:
        # From step 16 on: the first ten steps, which record everything, are not the usual ones.
        settings = {"budget": 1.0, "step": CYCLE - 1, **self.options}
        made = watch(self.bench.model, self.optimizer, run=self.folder / "run", **settings)
        assert isinstance(made, Watcher)
        made.guard.timer.clock = self.clock
        self.watcher = made
        # The signals' own hooks look at the clock themselves.
        hooks.time = SimpleNamespace(perf_counter=self.clock)  # type: ignore[assignment]
        return made

    def __exit__(self, *_: object) -> None:
        self.watcher.close()
        hooks.time = time
        shutil.rmtree(self.folder, ignore_errors=True)  # the thread may still be sealing


def train(bench: Bench, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    bench.loss(model).backward()
    optimizer.step()


def timed(action: Callable[[], object], clock: Clock = time.thread_time) -> float:
    start = clock()
    action()
    return clock() - start


def naive(model: torch.nn.Module) -> list[float]:
    """What one writes first: a few statistics of every gradient, each a pass and a read."""
    found = []
    for parameter in model.parameters():
        g = parameter.grad
        if g is not None:
            found += [g.norm().item(), g.mean().item(), g.std().item(), g.abs().mean().item()]
            found += [g.min().item(), g.max().item(), (g == 0).sum().item()]
            found += [g.isnan().sum().item(), g.isinf().sum().item()]
    return found


def idle(steps: int = 100) -> None:
    """Steps that record nothing, on the MLP: between recorded ones, and in a long stretch."""
    bench = mlp()
    optimizer = torch.optim.SGD(bench.model.parameters(), 0.0)
    for what, every in (("between recorded ones", 3), ("in a long stretch", 1 << 30)):
        with Recording(bench, optimizer, every=every, record={"gradients"}) as watcher:
            watcher.guard.timer.clock = time.perf_counter
            costs = []
            for _ in range(steps):
                spent = watcher.guard.timer.spent
                train(bench, bench.model, optimizer)
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
        with Recording(bench, optimizer, every=1) as watcher:
            timer, recorder = watcher.guard.timer, watcher.controller.recorder
            timer.clock = time.perf_counter
            inner = recorder.before

            def slow(frame, inner=inner, pause=pause):  # type: ignore[no-untyped-def]
                if pause:
                    time.sleep(pause)
                inner(frame)

            recorder.before = slow  # type: ignore[method-assign]
            costs = []
            for _ in range(60):
                spent = timer.spent
                train(bench, bench.model, optimizer)
                costs.append(timer.spent - spent)
        found.append(min(costs))
    seen = found[1] - found[0]
    verdict = "seen" if seen >= 0.75 * PLANTED else "NOT SEEN: these figures mean nothing"
    print(f"planted sleep of {PLANTED * 1e6:.0f} µs: {seen * 1e6:.0f} µs {verdict}")
    if seen < 0.75 * PLANTED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
