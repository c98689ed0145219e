"""The model cannot reach its targets: its last activation is bounded.

What is seen: the last operation of the model is a sigmoid, tanh, softmax, ReLU or softplus,
the loss is a squared error, and at least `share` of the targets of the first steps lie
outside of what that operation can give.

Why it hurts: those targets are never reached. The activation is driven into its flat part,
where no gradient comes through, and the loss stands at what is left.

What helps: end a regression with a linear layer, or scale the targets into the range of the
activation.

Threshold: 5 % of the targets.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import context
from gradwatch.checks.target_scale import targets
from gradwatch.text import number, percent

NAME = "output-range"
NEEDS: frozenset[str] = frozenset()
_BOUNDED = ("Sigmoid", "Softmax", "Tanh", "ReLU", "Softplus")


def check(run: Run, *, share: float = 0.05) -> Outcome:
    """Yield a finding for the last activation and the layer in front of it."""
    ctx = context(run)
    known = targets(ctx)
    if known is None or known.outside is None or known.outside < share:
        return
    last = [node.layer for node in run.graph.nodes if node.kind in _BOUNDED][-1:]
    activation = [layer for layer in last if ctx.is_output(layer)]
    kind = str(run.info.get("output_activation", "its last activation")).lower()
    yield finding(
        NAME,
        Severity.WARNING,
        tuple(dict.fromkeys((*activation, *ctx.output_layer))),
        run.steps,
        f"the model ends with {kind}, which cannot give {percent(known.outside)} of the targets: "
        f"they go from {number(known.least)} to {number(known.largest)}",
        Evidence("target_outside", None, known.step, known.outside, share),
        cause="A bounded activation at the end of a regression.",
        advice=(
            "Remove the last activation, or scale the targets into its range: the loss should "
            "then fall below where it stands.",
        ),
    )
