"""Backward passes, but no optimizer step.

What is seen: losses are logged and gradients made, again and again, and no optimizer steps; or
one of several optimizers never steps although its parameters get gradients.

Why it hurts: nothing is learned. The loss only goes up and down with the batches, and no error
is raised.

What helps: optimizer.step() after loss.backward(), of every optimizer; with gradient accumulation
after every few passes. A step that torch does not see (another library's optimizer, an update by
hand) has to be told: watcher.step().

Threshold: 20 backward passes or losses. While a run goes on, gradients must also have been
cleared unused, since an accumulation may be as long as it likes; of several optimizers one may
rest for 200 passes. Steps that a gradient scaler skips count as steps.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Skipped, finding
from gradwatch.checks.ownership import silent_optimizers
from gradwatch.text import number, several

NAME = "no-optimizer-step"
NEEDS: frozenset[str] = frozenset()
LONGEST_ACCUMULATION = 1000


def check(run: Run, *, least: int = 20, rest: int = 200) -> Outcome:
    """Yield one finding for the whole run, or one for each silent optimizer."""
    told = without_step(run)
    if told and not told.get("strangers"):  # those are foreign-optimizer's
        yield from _never(run, told, least)
    for entry in silent_optimizers(run):
        passes = _count(entry, "backwards")
        if passes >= (least if run.info.get("complete") else rest):
            yield from _silent(run, entry, passes)


def without_step(run: Run) -> Mapping[str, Any]:
    """What the recorder counted before the first step; empty where a step was made."""
    told = run.info.get("without_step")
    return told if isinstance(told, Mapping) else {}


def _never(run: Run, told: Mapping[str, Any], least: int) -> Outcome:
    passes, losses = _count(told, "backwards"), _count(told, "losses")
    unused, optimizers = _count(told, "discarded"), told.get("optimizers")
    if passes < least and not (losses >= least and optimizers):
        return
    # the first of the passes that are cleared unused is seen with the second
    over = run.info.get("complete") or unused >= least - 1 or passes >= LONGEST_ACCUMULATION
    if not over and passes >= least:
        return
    if told.get("moved"):
        reason = (
            "the weights change, but no step was seen: call watcher.step() after each step of an "
            "optimizer that is not one of torch's"
        )
        yield Skipped(NAME, reason)
        return
    step = int(run.steps[0]) if len(run.steps) else 0
    seen = [f"{passes} backward passes"] * (passes > 0) + [f"{losses} losses"] * (losses > 0)
    ends = [told.get("first_loss"), told.get("last_loss")]
    moved = [number(value) for value in ends if isinstance(value, int | float)]
    then = f"; the loss went from {moved[0]} to {moved[1]}" if len(moved) == 2 else ""
    kinds = ", ".join(map(str, optimizers)) if isinstance(optimizers, list) else ""
    lost = "made and cleared again, " if unused else "made, "
    yield finding(
        NAME,
        Severity.CRITICAL,
        (),
        (step, step),
        f"{' and '.join(seen)}, and no optimizer step: the weights are those of the start{then}",
        Evidence("backwards" if passes else "loss", None, step, max(passes, losses), 0.0),
        cause=f"optimizer.step() is never reached: gradients are {lost}and nobody uses them."
        if passes
        else "Neither loss.backward() nor optimizer.step() is reached.",
        advice=(
            f"Call step() of the optimizer{f' ({kinds})' if kinds else ''} after loss.backward(), "
            "with a gradient scaler scaler.step(optimizer); then the number of steps above grows.",
            "If an optimizer that is not one of torch's steps, call watcher.step() after it.",
        ),
    )


def _silent(run: Run, entry: Mapping[str, Any], passes: int) -> Iterator[Finding]:
    held = entry.get("parameters")
    names = set(held) if isinstance(held, list) else set()
    layers = tuple(dict.fromkeys(p.layer for p in run.parameters if p.name in names))
    position, kind = _count(entry, "position"), str(entry.get("optimizer", "optimizer"))
    first, last = (int(run.steps[0]), int(run.steps[-1])) if len(run.steps) else (0, 0)
    yield finding(
        NAME,
        Severity.CRITICAL,
        layers,
        (first, last),
        f"{several(layers)} got {passes} gradients, but its optimizer ({kind}, number {position} "
        f"of {_count(entry, 'of')} given to watch) never stepped",
        Evidence("backwards", None, last, passes, 0.0),
        cause="step() of this optimizer is never reached; the others do step.",
        advice=(
            f"Call step() of optimizer number {position} ({kind}) as well; then the weights of "
            f"{several(layers)} change from step to step.",
            "If these layers are meant to rest, set requires_grad to False.",
        ),
    )


def _count(told: Mapping[str, Any], name: str) -> int:
    """Files are not trusted: what is no count is none."""
    value = told.get(name)
    return value if isinstance(value, int) else 0
