"""A run of four ranks in a folder: one far from the others, one slow, one that was cut short."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradwatch.finding import Finding, Severity
from gradwatch.run import Run
from gradwatch.store import Writer, open_run

STEPS = 10
CUT_AT = 6
LOSS = (1.0, 1.125, 1.25, 4.0)
SECONDS = (0.1, 0.1, 0.1, 0.5)


@contextmanager
def four_ranks(path: Path) -> Iterator[Run]:
    """Rank 2 was never closed and has only its first steps."""
    writers = [Writer.create(path, name="ranked", rank=rank, world=4) for rank in range(4)]
    for rank, writer in enumerate(writers):
        for step in range(CUT_AT if rank == 2 else STEPS):
            writer.scalars(
                step,
                {
                    "loss": LOSS[rank] + (STEPS - 1 - step) / 4,
                    "step_seconds": SECONDS[rank],
                    "input_rms": 1.0 + rank,
                },
            )
        assert writer.flush()
        if rank != 2:
            writer.close(60.0)
    yield open_run(path)
    writers[2].close(60.0)


def left_behind() -> Finding:
    """What the check of replicas says about rank 1."""
    return Finding(
        "replica-divergence",
        Severity.CRITICAL,
        ("odd",),
        5,
        STEPS - 1,
        "the copy of odd.weight on rank 1 differs from the others since step 5",
    )
