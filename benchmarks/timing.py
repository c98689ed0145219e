"""What the benchmarks of watching share: whose time is counted, and the floor."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from torch import nn

from benchmarks.floor import read
from gradwatch.record import guard


def count_by(clock: Callable[[], float]) -> None:
    """Let watchers that are made from now on count their time by this clock.

    By that of the training's thread a busy neighbour does not count as ours.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("gradwatch.record.") and "perf_counter" in vars(module):
            setattr(module, "perf_counter", clock)  # noqa: B010
    setattr(guard, "time", SimpleNamespace(perf_counter=clock))  # noqa: B010


def read_once(model: nn.Module) -> float:
    """The floor: seconds for reading every gradient once and doing next to nothing."""
    gradients = [p.grad.numpy() for p in model.parameters() if p.grad is not None]
    began = time.thread_time()
    for gradient in gradients:
        read(gradient)
    return time.thread_time() - began
