"""The loss is fed with probabilities that it cannot use.

What is seen: cross-entropy takes a softmax of its input itself, and that input is already a
softmax; or the softmax runs over another dimension (the batch, the time) than the classes
the loss chooses between. Both are seen in the autograd graph of the logged loss, or in the
rows of the output.

Why it hurts: a softmax of probabilities is almost uniform: for ten classes the loss cannot
fall below 1.46, and the gradient is small exactly where the network is right. Over the wrong
dimension samples compete with each other instead of classes: the first loss is the logarithm
of that dimension, often far below chance, and what it falls to means nothing.

What helps: remove the softmax in front of CrossEntropyLoss, or use log_softmax with
NLLLoss, over the dimension of the classes.

Threshold: none; the structure of the graph decides. How low the first loss is does not: a
model that was trained before starts below chance, too.
"""

import math

from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, finding
from gradwatch.checks.context import context
from gradwatch.text import number

NAME = "output-misuse"
NEEDS: frozenset[str] = frozenset()


def check(run: Run) -> Outcome:
    """Yield a finding for the layer that makes the probabilities."""
    if not len(run.steps):
        return
    if run.info.get("loss_fed_with") == "probabilities":
        yield _doubled(run)
    over, classes = run.info.get("softmax_over"), run.info.get("classes")
    if isinstance(over, int) and isinstance(classes, int) and 1 < over != classes:
        yield _wrong_dimension(run, over, classes)


def _makers(run: Run, kind: str) -> tuple[str, ...]:
    """The layers that make the probabilities: the last softmax, the last one with weights."""
    softmax = [node.layer for node in run.graph.nodes if node.kind == kind]
    return tuple(dict.fromkeys((*softmax[-1:], *context(run).output_layer)))


def _doubled(run: Run) -> Finding:
    loss = context(run).loss
    start, chance = (loss.start, loss.chance) if loss else (float("nan"), None)
    return finding(
        NAME,
        Severity.CRITICAL,
        _makers(run, "Softmax"),
        run.steps,
        "cross-entropy receives probabilities; it applies the softmax itself",
        Evidence("loss", None, run.steps[0], start, chance),
        cause="There is a softmax at the end of the network and another one in the loss.",
        advice=("Give CrossEntropyLoss the logits: remove the last softmax.",),
    )


def _wrong_dimension(run: Run, over: int, classes: int) -> Finding:
    loss = context(run).loss
    start = loss.start if loss else float("nan")
    chance = math.log(classes)
    began = (
        f"; the first loss is {number(start)}, a guess would give {number(chance)}" if loss else ""
    )
    return finding(
        NAME,
        Severity.CRITICAL,
        _makers(run, "LogSoftmax"),
        run.steps,
        f"the softmax runs over a dimension of {over:,}, but the loss chooses between {classes:,} "
        f"classes{began}",
        Evidence("loss", None, run.steps[0], start, chance),
        cause="Samples or positions compete for probability instead of classes: what the loss "
        "falls to says nothing about the predictions.",
        advice=(
            f"Take the softmax over the dimension of the {classes:,} classes, usually dim=-1; the "
            f"first loss should then be about {number(chance)}.",
        ),
    )
