"""An optimizer steps parameters of another model.

What is seen: an optimizer given to `watch` holds no parameter of the model, and the weights that
have no other optimizer stay as they are. Where only some weights are in no optimizer, and every
optimizer holds some of the model, see not-updated.

Why it hurts: every step is made, none changes the network. Gradients are not cleared either, since
its zero_grad() clears those of the other model; they grow from step to step.

What helps: make the optimizer from the parameters of the model that is trained, after it was
copied, rebuilt, loaded or replaced for the last time.

Threshold: no parameter at all, and weights whose bits stay the same: where something copies its
results back (master weights), nothing is said. If every weight has another optimizer, it is only
mentioned.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Skipped, Stat, finding
from gradwatch.checks.context import context
from gradwatch.checks.no_optimizer_step import without_step
from gradwatch.checks.ownership import foreign_optimizers, handed, optimizers, unchanged
from gradwatch.text import several

NAME = "foreign-optimizer"
NEEDS: frozenset[str] = frozenset()
_ADVICE = (
    "Make the optimizer from the parameters of the model that is trained, after the last copy, "
    "rebuild or load; then the weights change from the first step on.",
    "The watched model may be the wrong one: watch the one whose loss is trained.",
)


def check(run: Run) -> Outcome:
    """Yield one finding: of the whole run, or of the layers that have no other optimizer."""
    told = without_step(run)
    if told.get("strangers") and not told.get("moved"):
        kinds = ", ".join(map(str, told["strangers"]))
        yield finding(
            NAME,
            Severity.CRITICAL,
            (),
            (int(run.steps[0]),) if len(run.steps) else (0,),
            f"{kinds} steps, but holds no parameter of this model: its weights never change",
            Evidence("backwards", None, 0, told.get("backwards", 0), None),
            cause="The optimizer was made from the parameters of another model, or of a copy.",
            advice=_ADVICE,
        )
    foreign = foreign_optimizers(run)
    if foreign and len(run.names):
        yield from _of_given(run, foreign)


def _of_given(run: Run, foreign: list[int]) -> Outcome:
    ctx = context(run)
    owned = handed(ctx)
    orphans = ctx.trainable & ~owned
    same = unchanged(ctx)
    if orphans.any() and same is None:
        yield Skipped(NAME, "neither weights nor updates were recorded on enough steps")
        return
    if same is not None and (orphans & ~same).any():
        return  # somebody moves them: copies with higher precision, for example
    all_of = optimizers(run)
    who = " and ".join(
        f"{all_of[at]['optimizer']} (number {at + 1} of {len(all_of)} given to watch)"
        for at in foreign
    )
    columns = ctx.in_forward_order(orphans)
    layers = ctx.layers(columns) if owned.any() else ()
    first, last = (int(run.steps[0]), int(run.steps[-1])) if len(run.steps) else (0, 0)
    count = sum(int(all_of[at]["parameters"]) for at in foreign)
    then = f": {several(layers)} stays bit-identical over {last - first} steps"
    yield finding(
        NAME,
        Severity.CRITICAL if columns else Severity.INFO,
        layers,
        (first, last),
        f"{who} holds {count} tensors, none of them of this model{then if columns else ''}",
        Evidence(Stat.UPDATE_NORM, run.names[columns[0] if columns else 0], last, 0.0, None),
        cause="The optimizer was made from the parameters of another model, or of a copy."
        if columns
        else "Every weight of this model has another optimizer; this one belongs elsewhere.",
        advice=_ADVICE if columns else (),
    )
