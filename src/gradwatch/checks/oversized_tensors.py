"""Tensors of a checkpoint that claim to be far larger than what its files store.

What is seen: a view that shows the same stored elements again and again (`expand`, or many views
of one storage), until it would need many times the bytes of the file. It is not measured.

Why it hurts: a file of a kilobyte takes terabytes of memory as soon as something makes the tensor
contiguous. That is a mistake in how it was saved, or an attack.

What helps: save what was expanded before it is expanded; do not load a stranger's file that has it.

Threshold: together 1 GiB and twice the bytes that are stored.
"""

from gradwatch.checks.check import ELEMENTS, Outcome, Run, Severity, finding
from gradwatch.checks.tensors import checkpoint_of

NAME = "oversized-tensors"
NEEDS = frozenset({ELEMENTS})


def check(run: Run) -> Outcome:
    """One finding for all of them."""
    checkpoint = checkpoint_of(run)
    names = checkpoint.index.oversized
    if not names:
        return
    more = f", and {len(names) - 1} more tensors" if len(names) > 1 else ""
    yield finding(
        NAME,
        Severity.WARNING,
        (),
        (checkpoint.step,),
        f"{names[0][:80]} is not measured: {checkpoint.index.left_out[names[0]]}{more}",
        (),
        cause="A tensor was expanded before it was saved, or somebody wants to fill your memory.",
        advice=(
            "Save the tensor before it is expanded.",
            "Do not load the file if it is not your own.",
        ),
    )
