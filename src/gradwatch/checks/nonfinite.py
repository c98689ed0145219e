"""A loss, gradient, weight or layer output became NaN or infinite.

What is seen: every step counts the non-finite elements of gradients and weights, of the
loss and the inputs, and of a sample of each layer's output. The first step with any of them
is the onset. The origin is the first layer, in forward order, whose input was finite and
whose output was not; where the forward pass and the loss were still finite, the last layer
(in forward order) with a bad gradient; where even the gradients were finite, the layer
whose weights turned bad in the update.

Why it hurts: one NaN reaches every weight within a step or two. What is learnt afterwards
is nothing.

What helps: look at the phase. Input: clean the batch. Forward: a division, log, sqrt or exp
without a guard, or activations beyond the range of float16. Loss: log of zero; use the
fused, logit-taking loss. Backward: sqrt or norm at zero, 0 × Inf in a masked branch.
Update: learning rate too large, no clipping.

Threshold: none, one element is enough. Overflowing steps that a gradient scaler skipped do
not count, nor do infinite outputs a network shows from the first step while loss and
gradients stay finite (masks).
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.origin import Origin, StepPhase, origin
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat
from gradwatch.text import several

NAME = "nonfinite"
NEEDS: frozenset[str] = frozenset()

_CAUSE = {
    StepPhase.INPUT: "The batch itself held NaN or Inf.",
    StepPhase.FORWARD: "A finite input became non-finite inside this layer.",
    StepPhase.LOSS: "All layer outputs were finite; the loss function made it.",
    StepPhase.BACKWARD: "The forward pass and the loss were finite; the derivative was not.",
    StepPhase.UPDATE: "The gradients were finite; the optimizer's step was not.",
}
_ADVICE = {
    StepPhase.INPUT: ("Look at that batch; drop or repair rows that are not finite.",),
    StepPhase.FORWARD: (
        "Look for log, sqrt, division or exp without a guard in this layer.",
        "Lower the learning rate or clip gradients if values had been growing.",
        "In float16 keep this layer in float32.",
    ),
    StepPhase.LOSS: (
        "Use the loss that takes logits, or clamp what goes into the log.",
        "Check the targets of that batch.",
    ),
    StepPhase.BACKWARD: (
        "Look for sqrt, norm or pow at zero, and for masked branches (0 × Inf).",
        "Add a small constant inside the root.",
    ),
    StepPhase.UPDATE: (
        "Lower the learning rate; clip gradients by norm.",
        "Check the optimizer's epsilon and the precision of its state.",
    ),
}


def check(run: Run, *, mask_share: float = 0.9) -> Outcome:
    """Yield the first non-finite value with its layer and phase."""
    found = origin(run)
    if found is not None:
        yield _finding(run, context(run), found)
        return
    yield from _outputs_only(run, mask_share)


def _finding(run: Run, ctx: CheckContext, found: Origin) -> Finding:
    where = f" in {several(found.layers)}" if found.layers else ""
    phase = "forward pass" if found.phase is StepPhase.FORWARD else found.phase.value
    return Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        layers=found.layers,
        first_step=found.step,
        last_step=int(run.steps[np.flatnonzero(ctx.nonfinite_rows)[-1]]),
        message=f"NaN or Inf first appears at step {found.step}, in the {phase}{where}",
        evidence=(Evidence(found.stat, found.subject, found.step, found.measured, 0.0),),
        cause=_CAUSE[found.phase],
        advice=_ADVICE[found.phase],
    )


def _outputs_only(run: Run, mask_share: float) -> Outcome:
    """Layer outputs that are not finite while loss, gradients and weights are."""
    if Stat.PROBE_NONFINITE not in run.recorded:
        return
    bad = run.series[Stat.PROBE_NONFINITE] > 0
    inputs = run.series[Stat.PROBE_INPUT_NONFINITE] > 0
    born = bad & ~inputs
    rows = np.flatnonzero(born.any(axis=1))
    if not len(rows):
        return
    by_design = bad[0].any() and bad.any(axis=1).mean() >= mask_share
    first = int(rows[0])
    layer = run.by_kind[Kind.LAYER][int(born[first].argmax())].name
    step = int(run.steps[first])
    yield Finding(
        check=NAME,
        severity=Severity.INFO if by_design else Severity.WARNING,
        layers=(layer,),
        first_step=step,
        last_step=int(run.steps[rows[-1]]),
        message=f"{layer} gives NaN or Inf from step {step}; loss and gradients are finite",
        evidence=(Evidence(Stat.PROBE_NONFINITE, layer, step, float(bad[first].sum()), 0.0),),
        cause="Looks like a mask." if by_design else _CAUSE[StepPhase.FORWARD],
        advice=_ADVICE[StepPhase.FORWARD][:1],
    )
