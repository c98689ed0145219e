"""NaN or infinity among the weights.

What is seen: elements that are NaN or infinite, with the place of the first one. Masks, which
may hold minus infinity on purpose, are passed over.

Why it hurts: one NaN weight makes every output that touches it NaN. The training broke before
this checkpoint was written, or the file was damaged or badly converted.

What helps: an earlier checkpoint; `gradwatch diagnose` on the run's record to see where it
began; a conversion that checks for overflow (float16 ends at 65504).
"""

from gradwatch.checkpoints.checks.check import Outcome, TensorFault, finding, worst_first
from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.finding import Severity
from gradwatch.stats import Stat

NAME = "nonfinite"


def check(checkpoint: Checkpoint) -> Outcome:
    """One finding for all tensors that hold any."""
    faults = [
        TensorFault(stats, float(stats.nonfinite), _in_words(stats))
        for stats in checkpoint.tensors
        if stats.nonfinite and stats.tensor.element.floating and not _masks(stats)
    ]
    yield from finding(
        NAME,
        Severity.CRITICAL,
        checkpoint,
        worst_first(faults),
        stat=Stat.WEIGHT_NAN,
        limit=0.0,
        cause="The training broke before this checkpoint was written, or a conversion overflowed.",
        advice=(
            "Go back to an earlier checkpoint.",
            "Run gradwatch diagnose on the run's record to see where it began.",
        ),
    )


def _masks(stats: TensorStats) -> bool:
    """Whether it looks like a mask, which holds minus infinity on purpose."""
    only_negative = stats.nonfinite == int(stats.moments["neg_inf"])
    return only_negative and ("mask" in stats.tensor.role.lower() or stats.tensor.role == "bias")


def _in_words(stats: TensorStats) -> str:
    nan = int(stats.moments["nan"])
    kinds = [f"{nan} NaN"] if nan else []
    if stats.nonfinite > nan:
        kinds.append(f"{stats.nonfinite - nan} infinite")
    place = stats.first_position
    first = "" if place is None else f", the first at {place}"
    return f"{' and '.join(kinds)} of {stats.tensor.count} elements{first}"
