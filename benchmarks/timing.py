"""What the benchmarks of watching share: whose time is counted, and the floor."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from torch import nn

from benchmarks.floor import read, words
from gradwatch.record import guard
from gradwatch.record.tensors import gather


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
    gathered = gather([p.grad for p in model.parameters()])
    memory = words(gathered.batch)
    began = time.thread_time()
    read(memory)
    return time.thread_time() - began
