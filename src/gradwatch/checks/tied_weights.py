"""Tensors that are the same bytes under several names, or equal copies of each other.

What is seen: names that share one storage, and tensors with equal shape, type and bits
(constant ones apart, and vectors, which are often alike).

Why it hurts: tied weights do not (an embedding and its output layer often are); equal copies
cost disk and memory, or show that layers were copied and never trained apart.

What helps: tie them in the model if they are meant to be one; otherwise check that training
reached both.

Threshold: none; they are equal bit by bit, and only mentioned.
"""

from collections.abc import Iterable

from gradwatch.checkpoints.blocks import Access, blocks, close_all
from gradwatch.checkpoints.index import Index, TensorEntry
from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checks.check import ELEMENTS, Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_matrix

NAME = "tied-weights"
NEEDS = frozenset({ELEMENTS})


def check(run: Run) -> Outcome:
    """Only mention them."""
    checkpoint = checkpoint_of(run)
    faults = [
        TensorFault(stats, 0.0, f"is also named {', '.join(stats.tensor.aliases[:3])}")
        for stats in checkpoint.tensors
        if stats.tensor.aliases
    ]
    for first, *others in _alike(checkpoint.tensors):
        faults.extend(
            TensorFault(other, 0.0, f"is an equal copy of {first.name}")
            for other in others
            if _same_bytes(checkpoint.index, checkpoint.access, first.tensor, other.tensor)
        )
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.INFO: None},
        stat=Stat.WEIGHT_NORM,
        cause="The tensors are tied, or one was copied from the other.",
        advice=("If they are meant to differ, look at how the copy was made.",),
    )


def _alike(tensors: Iterable[TensorStats]) -> list[list[TensorStats]]:
    """Groups of matrices that agree in everything that was measured."""
    groups: dict[object, list[TensorStats]] = {}
    for stats in tensors:
        if is_matrix(stats.tensor) and float(stats.moments["std"]) > 0:
            key = (stats.tensor.shape, stats.tensor.element, stats.moments.tobytes())
            groups.setdefault(key, []).append(stats)
    return [group for group in groups.values() if len(group) > 1]


def _same_bytes(index: Index, access: Access, first: TensorEntry, second: TensorEntry) -> bool:
    """Bit by bit; tensors in several shards must be cut alike to count as equal."""
    if [(s.shape, s.start) for s in first.shards] != [(s.shape, s.start) for s in second.shards]:
        return False
    here, there = access(), access()
    try:
        return all(
            x.bits.tobytes() == y.bits.tobytes()
            for a, b in zip(first.shards, second.shards, strict=True)
            for x, y in zip(
                blocks(here, index.files[a.file], a, first.element),
                blocks(there, index.files[b.file], b, second.element),
                strict=True,
            )
        )
    finally:
        close_all()
