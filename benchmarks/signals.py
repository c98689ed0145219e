"""What each signal costs: thread time per step inside its hooks, arm and collect.

"every step" is the steady state between recorded steps, "recorded" a step on which everything is
due; the last column weighs them as the default cadence does (one step in sixteen is recorded).
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import gpt, mlp, resnet
from gradwatch.record.signals import hooks, make_signals
from gradwatch.stats import Family

BETWEEN = frozenset({Family.GRAD, Family.GROUP, Family.PROBE})
RECORDED = frozenset(Family)
RECORDED_SHARE = 1 / 16


def main() -> None:
    torch.set_num_threads(1)
    for make, steps in ((mlp, 200), (gpt, 6), (resnet, 6)):
        bench = make()
        model, loss = bench.model, partial(bench.loss, bench.model)
        bare = _bare(loss, steps)
        modules = sum(1 for _ in model.modules())
        print(f"\n{bench.summary}, {modules} modules; forward and backward {bare * 1e3:.2f} ms")
        print(f"  {'signal':22s}{'every step':>12s}{'recorded':>12s}{'share of the step':>20s}")
        between = _costs(model, loss, steps, BETWEEN)
        recorded = _costs(model, loss, steps, RECORDED)
        total = 0.0
        for signal in between:
            share = between[signal] + (recorded[signal] - between[signal]) * RECORDED_SHARE
            total += share
            _row(signal, between[signal], recorded[signal], share / bare)
        _row("all", sum(between.values()), sum(recorded.values()), total / bare)


def _row(name: str, between: float, recorded: float, share: float) -> None:
    print(f"  {name:22s}{between * 1e6:9.1f} µs{recorded * 1e6:9.1f} µs{share:19.2%}")


def _bare(loss: Callable[[], Tensor], steps: int) -> float:
    times = []
    for _ in range(steps + 1):
        begin = time.thread_time()
        loss().backward()
        times.append(time.thread_time() - begin)
    return min(times[1:])


def _costs(
    model: nn.Module, loss: Callable[[], Tensor], steps: int, due: frozenset[Family]
) -> dict[str, float]:
    """Least thread time per signal and step; the hooks' own clock is made a thread's, too."""
    tools: list[Any] = list(make_signals(model, [], {"activations"}))
    least: dict[str, float] = {}
    clock, hooks.time.perf_counter = hooks.time.perf_counter, time.thread_time
    try:
        for tool in tools:
            tool.attach()
        for step in range(steps + 4):  # the first steps look for the graph and the loss
            spent = {type(tool).__name__: _timed(tool.arm, step, due) for tool in tools}
            loss().backward()
            for tool in tools:
                name = type(tool).__name__
                spent[name] += tool.take_spent() + _timed(_collect, tool, step)
                if step >= 4:
                    least[name] = min(least.get(name, spent[name]), spent[name])
    finally:
        hooks.time.perf_counter = clock
        for tool in tools:
            tool.detach()
    return least


def _collect(tool: Any, step: int) -> None:
    list(tool.collect(step))
    tool.scalars(step)
    tool.events()


def _timed(work: Callable[..., object], *args: object) -> float:
    begin = time.thread_time()
    work(*args)
    return time.thread_time() - begin
