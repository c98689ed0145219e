"""The loss is fed with probabilities that it cannot use, or compares all outputs with all targets.

What is seen: cross-entropy takes a softmax of its input itself, and that input is already a
softmax; or the softmax runs over another dimension (the batch, the time) than the classes
the loss chooses between. Both are seen in the autograd graph of the logged loss, or in the
rows of the output. Of a squared or absolute error the graph shows where outputs of shape
(64, 1) and targets of shape (64,) were broadcast to 64 × 64 differences.

Why it hurts: a softmax of probabilities is almost uniform: for ten classes the loss cannot
fall below 1.46, and the gradient is small exactly where the network is right. Over the wrong
dimension samples compete with each other instead of classes: the first loss is the logarithm
of that dimension, often far below chance, and what it falls to means nothing. Where every
output is compared with every target, the best prediction is the mean of the batch.

What helps: remove the softmax in front of CrossEntropyLoss, or use log_softmax with
NLLLoss, over the dimension of the classes; give outputs and targets the same shape.

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
    match run.info.get("compared"):
        case [list(outputs), [int(count), int()]]:
            yield _broadcast(run, outputs, count)


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


def _broadcast(run: Run, outputs: list[int], count: int) -> Finding:
    loss = context(run).loss
    start = loss.start if loss else float("nan")
    targets = (count,) if len(outputs) == 2 else (count, 1)
    change = "y.unsqueeze(1)" if len(outputs) == 2 else "y.squeeze(1)"
    return finding(
        NAME,
        Severity.CRITICAL,
        context(run).output_layer,
        run.steps,
        f"the loss compares each of {count:,} outputs with each of {count:,} targets: outputs of "
        f"shape {tuple(outputs)} and targets of shape {targets} give {count:,} × {count:,} "
        "differences",
        Evidence("loss", None, run.steps[0], start, None),
        cause="Outputs and targets have different shapes and were broadcast: all outputs are "
        "pulled to the mean of the batch's targets.",
        advice=(
            f"Give the targets the shape of the outputs: {change}, or "
            "y.view_as(outputs). The loss should then fall below the variance of the targets.",
        ),
    )
