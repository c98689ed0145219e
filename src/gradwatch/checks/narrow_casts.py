"""The weights do not fit into a narrower type.

What is seen: elements above 65504, the largest float16, in a wider type (a warning); or more
than `share` of the elements of a tensor too small for float16's normal numbers (mentioned).
Headroom and subnormal shares of every tensor for bfloat16, float16 and both fp8 types are in
the table and in --json.

Why it hurts: what overflows becomes infinite, what underflows loses its digits or becomes zero.

What helps: bfloat16 instead of float16; a scale for each tensor or channel with fp8.

Threshold: the ends of float16, 65504 and 6e-5; underflow is mentioned from half of the elements
on, and only where the elements were counted by size (not in a run that keeps statistics).
"""

from gradwatch.checkpoints.measure import casts
from gradwatch.checks.check import Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_buffer
from gradwatch.text import number, percent

NAME = "narrow-casts"
NEEDS = frozenset({Stat.WEIGHT_ABS_MAX})
_LARGEST = 65504.0


def check(run: Run, *, share: float = 0.5) -> Outcome:
    """Yield a warning for overflow, a mention for underflow."""
    over, under = [], []
    for stats in checkpoint_of(run).tensors:
        if is_buffer(stats.tensor):
            continue
        largest = float(stats.moments["abs_max"])
        if largest > _LARGEST:
            words = f"the largest element is {number(largest)}; float16 ends at 65504"
            over.append(TensorFault(stats, largest, words))
        half = casts(stats, ("float16",)).get("float16")
        small = 0.0 if half is None else half.subnormal_fraction + half.vanishing_fraction
        if small >= share:
            words = f"{percent(small)} of the elements are too small for float16's full precision"
            under.append(TensorFault(stats, small, words))
    yield from findings(
        NAME,
        run,
        over,
        {Severity.WARNING: _LARGEST},
        stat=Stat.WEIGHT_ABS_MAX,
        cause="Weights of this size are rare; they become infinite in float16.",
        advice=("Use bfloat16.", "Look at why this tensor grew so large."),
    )
    yield from findings(
        NAME,
        run,
        under,
        {Severity.INFO: share},
        stat=Stat.WEIGHT_ABS_MEAN,
        cause="Below 6e-5 float16 has fewer digits, below 3e-8 none.",
        advice=("Use bfloat16, or scale the tensor.",),
    )
