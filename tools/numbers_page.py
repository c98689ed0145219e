"""Writes docs/numbers.md from the tables of cases that the tests hold against the truth.

`python -m tools.numbers_page > docs/numbers.md`; a test keeps the page fresh.
"""

import tests.record.loops_models
import tests.record.loops_optimizers
import tests.record.loops_scaled  # noqa: F401  (each adds its rows to the table)
from tests.distributed.cases import CASES, Case
from tests.record.loops import LOOPS

HEAD = """# What number you get where

Every row is a training that the tests run and compare, step by step, with the truth: the gradient,
weight and update of the same step computed in one plain process in float64. Gradients are always
those of the whole model and the whole batch: raw (before your clipping, with `clip_factor` beside
them), unscaled, accumulated over micro-batches, averaged over ranks, joined from shards.

## Many processes

`tests/distributed`, real processes under torchrun. Each rank has data of its own, and a test shows
that a rank's own gradient (or its own piece) is another number than the one recorded.

| training | ranks | `grad_…`, `weight_…`, `update_…` | clipping | scaler | loss |
|---|---|---|---|---|---|
"""

LOOPS_HEAD = """
No collective is added (`tests/distributed/test_no_collective.py` counts them with the profiler). A
step whose shards are not all there is marked *partial*. `run.ranks[r]` is one rank's own run.

## One process

`tests/record/test_record_loops.py`: every form of loop below records the true raw gradient, weight
and update; where the raw gradient cannot be known (clipping by value), the series says *clipped*.

"""


def row(case: Case) -> str:
    pieces = "ddp" not in case.name
    gradient = "shards joined, " if pieces else "averaged over ranks, "
    several = f"{case.micro_batches} micro-batches accumulated"
    gradient += several if case.micro_batches > 1 else "whole"
    clip = "raw, factor known" if case.clip else "none"
    loss = "each rank's own" if case.same_data < case.ranks else "the same on all"
    scaler = "unscaled" if case.scaler else "none"
    return f"| {case.name} | {case.ranks} | {gradient} | {clip} | {scaler} | {loss} |"


def page() -> str:
    loops = "\n".join(f"- {loop.name.replace('_', ' ')}" for loop in LOOPS)
    return HEAD + "\n".join(map(row, CASES)) + "\n" + LOOPS_HEAD + loops + "\n"


if __name__ == "__main__":
    print(page(), end="")
