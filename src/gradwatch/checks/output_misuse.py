"""Cross-entropy is fed with probabilities instead of logits.

What is seen: the loss takes a softmax of its input itself, and that input is already a
softmax (seen in the autograd graph of the logged loss, or in the rows of the output).

Why it hurts: a softmax of probabilities is almost uniform: for ten classes the loss cannot
fall below 1.46, and the gradient is small exactly where the network is right.

What helps: remove the softmax in front of CrossEntropyLoss, or use log_softmax with
NLLLoss.

Threshold: none; the structure of the graph decides.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import context

NAME = "output-misuse"
NEEDS: frozenset[str] = frozenset()


def check(run: Run) -> Outcome:
    """Yield a finding for the layer that makes the probabilities."""
    if run.info.get("loss_fed_with") != "probabilities" or not len(run.steps):
        return
    ctx = context(run)
    softmax = [node.layer for node in run.graph.nodes if node.kind == "Softmax"]
    start, chance = (ctx.loss.start, ctx.loss.chance) if ctx.loss else (float("nan"), None)
    yield finding(
        NAME,
        Severity.CRITICAL,
        tuple(dict.fromkeys((*softmax[-1:], *ctx.output_layer))),
        run.steps,
        "cross-entropy receives probabilities; it applies the softmax itself",
        Evidence("loss", None, run.steps[0], start, chance),
        cause="There is a softmax at the end of the network and another one in the loss.",
        advice=("Give CrossEntropyLoss the logits: remove the last softmax.",),
    )
