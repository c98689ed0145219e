"""NaN or infinity among the weights of a checkpoint.

What is seen: elements that are NaN or infinite, with the place of the first one. Masks, which
may hold minus infinity on purpose, are passed over.

Why it hurts: one NaN weight makes every output that touches it NaN. The training broke before
this checkpoint was written, or the file was damaged or badly converted.

What helps: an earlier checkpoint; `gradwatch diagnose` on the run's record to see where it
began; a conversion that checks for overflow (float16 ends at 65504).

Threshold: none; a single element is critical.
"""

from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checks.check import Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, has_elements, is_buffer

NAME = "nonfinite-weights"
NEEDS = frozenset({Stat.WEIGHT_NAN, Stat.WEIGHT_INF})


def check(run: Run) -> Outcome:
    """Yield one finding for all tensors that hold any."""
    signed = has_elements(run)  # statistics do not keep the infinities' signs apart
    faults = [
        TensorFault(stats, float(stats.nonfinite), _in_words(stats))
        for stats in checkpoint_of(run).tensors
        if stats.nonfinite and stats.tensor.element.floating and not _masks(stats, signed)
    ]
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.CRITICAL: 0.0},
        stat=Stat.WEIGHT_NAN,
        cause="The training broke before this checkpoint was written, or a conversion overflowed.",
        advice=(
            "Go back to an earlier checkpoint.",
            "Run gradwatch diagnose on the run's record to see where it began.",
        ),
    )


def _masks(stats: TensorStats, signed: bool) -> bool:
    """Whether it looks like a mask, which holds minus infinity on purpose."""
    if not signed:
        return not int(stats.moments["nan"]) and is_buffer(stats.tensor)
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
