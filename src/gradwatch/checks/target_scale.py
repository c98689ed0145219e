"""The targets of a regression are far from the scale networks are made for.

What is seen: the RMS of the targets on the first steps is above `large` or below `small`. The
targets are read from the gradient of the output, where the logged loss confirms that it is a
squared error; with an absolute error the first loss says how large they are at least.

Why it hurts: a network starts with outputs of about one. Far larger targets make loss,
gradients and steps large in proportion and keep the biases busy for thousands of steps; far
smaller ones drown in the first outputs, and Adam's steps are too large for them.

What helps: subtract the mean of the training targets and divide by their standard deviation;
multiply predictions back.

Thresholds: 100 and 0.01; above 10 or below 0.1 it is mentioned, and no more is said where the
loss falls to a hundredth of its start all the same, or of what predicting zero would give if that
is less: with tiny targets the first loss is that of the outputs.
"""

from dataclasses import dataclass

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.text import number

NAME = "target-scale"
NEEDS: frozenset[str] = frozenset()
_TOLERANCE = 2e-3
_SOLVED = 0.01
"""Part of the first loss: where no more is left, the scale does not matter."""
LARGE = 100.0
SMALL = 0.01


@dataclass(frozen=True)
class Targets:
    """What is known of the targets of a regression; a median over the steps looked at."""

    step: int
    rms: float
    at_least: bool = False
    """Only that the RMS is not below this."""
    least: float = float("nan")
    largest: float = float("nan")
    outside: float | None = None
    """Share out of the range of the model's last activation; None where that has no bounds."""


def targets(ctx: CheckContext) -> Targets | None:
    """The targets of the first steps; None where it is no regression or nobody knows."""
    return _from_gradients(ctx) or _from_loss(ctx)


def _from_gradients(ctx: CheckContext) -> Targets | None:
    """Of the lines that were noted those that give the loss that was logged: on all their steps."""
    lines, losses = ctx.run.info.get("targets"), ctx.run.scalars.get("loss")
    if not isinstance(lines, list) or losses is None or not len(ctx.steps):
        return None
    logged = dict(zip(ctx.steps.tolist(), losses.tolist(), strict=True))
    noted = [line for line in lines if isinstance(line, list) and len(line) == 6]
    steps = {line[0] for line in noted if np.isfinite(logged.get(line[0], np.nan))}
    fitting = {
        line[0]: line for line in noted if line[0] in steps and _fits(line[1], logged[line[0]])
    }
    if len(fitting) < 2 or len(fitting) < len(steps):
        return None
    columns = list(zip(*fitting.values(), strict=True))
    rms, least, largest = (float(np.median(np.array(columns[n], float))) for n in (2, 3, 4))
    bounded = None not in columns[5]
    outside = float(np.median(np.array(columns[5], float))) if bounded else None
    return Targets(int(min(fitting)), rms, False, least, largest, outside)


def _fits(loss: float, logged: float) -> bool:
    return bool(abs(loss - logged) <= _TOLERANCE * abs(logged))


def _from_loss(ctx: CheckContext) -> Targets | None:
    """An error is at most target plus output: what the outputs cannot explain are the targets."""
    kind, info = ctx.run.info.get("loss_kind"), ctx.run.info
    sizes = ctx.run.scalars.get("output_rms")
    if kind not in ("l1", "smooth_l1") or info.get("loss_reduction") == "sum" or sizes is None:
        return None
    loss = ctx.loss
    if loss is None or not np.isfinite(sizes[:1]).all() or loss.steps[0] != ctx.steps[0]:
        return None
    rms = float(loss.values[0]) - float(sizes[0])
    return Targets(int(loss.steps[0]), rms, at_least=True) if rms > 0 else None


def harmful(
    ctx: CheckContext, known: Targets | None, large: float = LARGE, small: float = SMALL
) -> bool:
    """Whether these targets are far from one, and the network has not learnt them all the same."""
    if known is None or not (known.rms > large or (not known.at_least and 0 < known.rms < small)):
        return False
    if ctx.loss is None:
        return True
    averaged = not known.at_least and ctx.run.info.get("loss_reduction") != "sum"
    of_zero = known.rms**2 if averaged else np.inf
    return ctx.loss.late > _SOLVED * min(ctx.loss.start, of_zero)


def check(run: Run, *, large: float = LARGE, small: float = SMALL, weak: float = 10.0) -> Outcome:
    """Yield a finding for the whole run."""
    ctx = context(run)
    known = targets(ctx)
    if known is None or known.rms == 0.0:
        return
    too_small = not known.at_least and known.rms < small * weak
    if not too_small and known.rms <= large / weak:
        return
    strong = known.rms > large or (too_small and known.rms < small)
    limit = (small if strong else small * weak) if too_small else large if strong else large / weak
    about = "at least " if known.at_least else ""
    span = "" if known.at_least else f", from {number(known.least)} to {number(known.largest)}"
    yield finding(
        NAME,
        Severity.WARNING if harmful(ctx, known, large, small) else Severity.INFO,
        (),
        (known.step,),
        f"the targets have an RMS of {about}{number(known.rms)}{span}; networks are made for "
        "about 1",
        Evidence("target_rms", None, known.step, known.rms, limit),
        cause="The targets were not scaled: loss and gradients are "
        f"{'small' if too_small else 'large'} in proportion.",
        advice=(
            "Subtract the targets' mean and divide by their standard deviation (of the training "
            "set); multiply predictions back. The first loss should then be about 1.",
        ),
    )
