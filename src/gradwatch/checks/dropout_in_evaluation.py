"""The validation runs in training mode.

What is seen: a number of a validation (`val_…`, `eval_…`, `test_…`) is logged, and the
forward passes without gradients around it were all made with the model in training mode,
which has dropout or BatchNorm layers. Passes that come on every step, validation or not, do
not count; nor do models in evaluation mode of which single layers are switched to training
(Monte-Carlo dropout).

Why it hurts: dropout makes the validation numbers worse and noisy; BatchNorm normalises by
the validation batch and takes the validation data into its running statistics, so that they
reach the model.

What helps: `model.eval()` before the validation, `model.train()` after it.

Threshold: none but the mode; it must be so around at least nine of ten validations that were
seen.
"""

import re

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Skipped, finding
from gradwatch.checks.context import Mask, Rows
from gradwatch.stats import Kind
from gradwatch.stats.medians import Array
from gradwatch.text import percent

NAME = "dropout-in-evaluation"
NEEDS: frozenset[str] = frozenset()
VALIDATION = re.compile(r"(val|valid|validation|eval|evaluation|test)([^a-z]|$)", re.IGNORECASE)
"""How the names of numbers that belong to a validation begin."""
_OURS = ("evaluations", "evaluations_in_training")


def check(run: Run, *, share: float = 0.9) -> Outcome:
    """Yield one finding for the whole run."""
    names = [name for name in run.scalars if VALIDATION.match(name)]
    if not names:
        return
    if "evaluations" not in run.scalars:
        yield Skipped(NAME, "no forward pass of a validation was seen")
        return
    passes, in_training = (np.nan_to_num(run.scalars[name]) for name in _OURS)
    logged = np.any([np.isfinite(run.scalars[name]) for name in names], axis=0)
    rows = _validations(logged, passes)
    seen = passes[rows] > 0
    wrong = rows[seen & (in_training[rows] == passes[rows])]
    if not len(wrong) or len(wrong) < share * seen.sum():
        return
    steps = run.steps[wrong]
    what = _active(run)
    yield finding(
        NAME,
        Severity.WARNING,
        (),
        steps,
        f"{names[0]} comes from a model in training mode: {what} active in "
        f"{percent(len(wrong) / seen.sum())} of the {int(seen.sum())} validations that were seen",
        Evidence("evaluations_in_training", None, steps[0], in_training[wrong[0]], 0.0),
        cause="model.eval() is missing before the validation.",
        advice=(
            "Call model.eval() before the validation and model.train() after it; the numbers of "
            "two validations in a row are then equal.",
        ),
    )


def _validations(logged: Mask, passes: Array) -> Rows:
    """For each logged validation the row that counts its passes: its own or the one after it.

    None where so many passes come on other steps as well.
    """
    rows = np.flatnonzero(logged)
    after = np.minimum(rows + 1, len(passes) - 1)
    rows = np.where(passes[after] >= passes[rows], after, rows)
    others = np.delete(passes, np.r_[rows, np.flatnonzero(logged)])
    usual = float(np.median(others)) if len(others) else 0.0
    return np.unique(rows[passes[rows] > usual]) if usual else np.unique(rows)


def _active(run: Run) -> str:
    dropout = any("Drop" in s.module for s in run.by_kind[Kind.LAYER])
    norm = any("BatchNorm" in s.module for s in run.by_kind[Kind.LAYER])
    if dropout and norm:
        return "dropout and BatchNorm were"
    return "BatchNorm was" if norm else "dropout was"
