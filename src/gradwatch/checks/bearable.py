"""What a training bears: true statements about one that works are no warnings.

A dead half of the units, a weight that grows, an odd first loss are found in many trainings that
work. `severity` weighs each finding by how the training turned out, and every door takes its
severities from there. Calibrated on healthy trainings only.
"""

import math
from typing import NamedTuple

from gradwatch.checks.context import CheckContext
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.finding import Evidence, Finding, Severity


class Bearable(NamedTuple):
    """What a training must have shown for a finding to be an information and no warning."""

    learning: Learning
    times: float = math.inf
    """Beyond so many times its limit it is a fault whatever the training shows."""
    learnt: float | None = None
    """It must have come about while the network learnt: there within this share of the run, it is a
    fault."""


BEARABLE: dict[str, Bearable] = {
    "bad-init": Bearable(Learning.WORKS, times=3.0),
    "clipping-every-step": Bearable(Learning.IMPROVES),
    "dead-units": Bearable(Learning.WORKS, learnt=0.05),
    "eps-dominated-adam": Bearable(Learning.IMPROVES),
    "saturation": Bearable(Learning.IMPROVES, learnt=0.02),
    "stale-second-moment": Bearable(Learning.IMPROVES),
    "unused-input": Bearable(Learning.WORKS),
    "update-leads-loss": Bearable(Learning.IMPROVES),
    "update-ratio-too-large": Bearable(Learning.WORKS, times=3.0),
    "vanishing-gradient": Bearable(Learning.WORKS),
    "weight-collapse": Bearable(Learning.WORKS, times=3.0),
    "weight-explosion": Bearable(Learning.WORKS, times=3.0),
}
"""Of each check that may be right and yet no fault. What hurts although the loss falls (a layer
that rests, NaN, gradients that are not cleared, a spike of the loss) is not among them."""


def severity(ctx: CheckContext, finding: Finding) -> Severity:
    """How grave a finding is in a training that turned out as this one did."""
    needed = BEARABLE.get(finding.check)
    if needed is None or outcome(ctx).learning < needed.learning:
        return finding.severity
    beyond = [_beyond(item) for item in finding.evidence]
    if max(beyond, default=1.0) > needed.times:
        return finding.severity
    if needed.learnt is not None:
        early = ctx.steps[0] + needed.learnt * (ctx.steps[-1] - ctx.steps[0])
        if finding.first_step <= early:
            return finding.severity
    return Severity.INFO


def _beyond(item: Evidence) -> float:
    """How many times its limit a measurement is, or the limit it, where less is worse."""
    if item.limit is None or item.limit <= 0 or item.measured <= 0:
        return math.inf
    return max(item.measured / item.limit, item.limit / item.measured)


def bearable(check: str) -> str:
    """The sentence that says when what a check finds is only an information."""
    needed = BEARABLE.get(check)
    if needed is None:
        return ""
    words = "works" if needed.learning is Learning.WORKS else "clearly improves"
    but = f", unless it is beyond {needed.times:g} times the limit" * math.isfinite(needed.times)
    but += ", unless it was there from the first steps on" * (needed.learnt is not None)
    return f"Only an information in a training that {words}{but}."
