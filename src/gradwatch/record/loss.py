"""The kind of a loss, the classes it knows and what it is fed with, from its autograd graph.

Only names, shapes and single numbers of the graph are read, before or after the backward pass.
Where only a number is logged, `guess` finds the kind out from the model's output and its gradient.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.graph import Node, saved_dim

_KINDS = {
    "BinaryCrossEntropy": "bce",
    "BinaryCrossEntropyWithLogits": "bce_logits",
    "SmoothL1Loss": "smooth_l1",
    "LogSoftmax": "cross_entropy",
}
"""Others are called what torch calls them: `mse`, `huber`, `ctc`."""
_DIFFERENCES = ("mse", "smooth_l1", "huber")
_NLL = ("NllLoss", "NllLoss2D")
_SOFTMAX = ("Softmax", "SafeSoftmax")
_KEEPING = {
    *("View", "UnsafeView", "Reshape", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze"),
    *("Alias", "Clone", "ToCopy"),
}
_RESHAPING = _KEEPING | {"Slice", "Select", "Index", "Expand", "AsStrided"}
_ARITHMETIC = {
    *("Mean", "Sum", "Neg", "Mul", "Div", "Add", "Sub", "Pow", "Abs"),
    *("MaskedFill", "Where", "Cat", "Stack"),
}
_SUM = 2  # torch's number of reduction="sum"
_MOST_OF_LOSS, _MOST_OF_MODEL = 200, 5000
"""Nodes of a graph that are looked at; of a model whose graph is larger nothing is said."""


def describe_loss(loss: Any) -> dict[str, Any]:
    """Keys for `run.info`: `loss_kind`, `classes`, `chance`, `loss_fed_with`, where known.

    Where the softmax runs over another dimension than the classes, `softmax_over` is its size.
    Where each sample of a batch is a class, `classes_are_samples`; where a difference of every
    output and every target was taken, `compared` has the shapes.
    """
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        return {}
    arithmetic = list(islice(_nodes(loss.grad_fn, _passes), _MOST_OF_LOSS))
    losses = [node for node in arithmetic if _kind(node) is not None]
    if any(_stem(node) in _NLL for node in losses):
        # label smoothing shows the log-softmax itself beside the loss
        losses = [node for node in losses if _stem(node) != "LogSoftmax"]
    if not losses:
        return _written_out(arithmetic[:6])
    if len({_kind(node) for node in losses}) > 1:
        return {"loss_kind": "sum"}
    return _details(losses[0], scaled=_is_scaled(loss.grad_fn))


def _details(node: Node, *, scaled: bool) -> dict[str, Any]:
    kind, inner = _kind(node), node
    details: dict[str, Any] = {"loss_kind": kind}
    classes = _channel(node) if kind == "nll" else 2 if kind in ("bce", "bce_logits") else None
    if kind == "cross_entropy":
        inner = node if _stem(node) == "LogSoftmax" else _below(node, "LogSoftmax") or node
        classes = _classes(inner)
    over = _normalised_over(node)
    if over is not None and over != (chosen := _channel(node)):
        classes = chosen
        details["softmax_over"] = over
    if classes is not None:
        details["classes"] = classes
    if kind in ("cross_entropy", "bce_logits"):
        squashed = _below(inner, *_SOFTMAX, "Sigmoid") is not None
        details["loss_fed_with"] = "probabilities" if squashed else "logits"
    averaged = getattr(node, "_saved_reduction", 1) != _SUM
    if not averaged:
        details["loss_reduction"] = "sum"
    if kind in _DIFFERENCES:
        details |= _compared(node)
    if kind == "cross_entropy" and _among_themselves(inner):
        details["classes_are_samples"] = True
    elif classes is not None and classes >= 2 and averaged and not scaled:
        details["chance"] = math.log(classes)
    return details


def _kind(node: Node) -> str | None:
    stem = _stem(node)
    if stem in _NLL:
        return "nll" if _below(node, "LogSoftmax") is None else "cross_entropy"
    return _KINDS.get(stem, stem.removesuffix("Loss").lower() if stem.endswith("Loss") else None)


def _compared(node: Node) -> dict[str, Any]:
    """The shapes of n outputs and of the n × n differences that broadcasting made of them.

    Nobody means that who did not add the dimension himself; and of two tensors that both depend on
    the network the pairs are meant.
    """
    children = _children(node)
    if len(children) != 1:
        return {}
    expanded = _stem(children[0]) == "Expand"
    both = _shape(children[0] if expanded else node)
    child = _child(children[0]) if expanded else children[0]
    given = _shape(child)
    count = math.prod(given)
    pairs = count > 1 and len(given) <= 2 and both == (count, count) != given
    pairs = pairs and _stem(child) != "Unsqueeze"
    return {"compared": [list(given), list(both)]} if pairs else {}


def _classes(node: Node) -> int | None:
    """The size of the dimension the log-softmax runs over."""
    shape = _shape(node)
    dim = saved_dim(node, len(shape))
    return int(shape[dim]) if shape and -len(shape) <= dim < len(shape) else None


def _among_themselves(node: Node) -> bool:
    """Whether the classes are the samples of the batch (contrastive): chance grows with it."""
    shape = _shape(node)
    return len(shape) == 2 and shape[0] == shape[1] and last_operation(_child(node)) != "Addmm"


def _channel(node: Node) -> int | None:
    """The classes a negative log-likelihood chooses from: the channel of what it was given."""
    shape = _shape(_child(node))
    return int(shape[min(1, len(shape) - 1)]) if shape else None


def _normalised_over(node: Node) -> int | None:
    """The size of the dimension whose probabilities a negative log-likelihood was given.

    Nothing may have been cut out of them on the way.
    """
    if _stem(node) not in _NLL:
        return None
    made = _below(node, "LogSoftmax", through=_KEEPING)
    if made is None and (log := _below(node, "Log", through=_KEEPING)) is not None:
        made = _below(log, *_SOFTMAX, through=_KEEPING)
    return None if made is None else _classes(made)


def _is_scaled(start: Node) -> bool:
    """Whether a loss was multiplied before it was logged: by what, the graph does not say."""
    last = list(_line(start, _RESHAPING | {"Mean"}))[-1]
    # Of soft targets the mean over the batch divides the negated sum.
    return _stem(last) in ("Mul", "Div") and _stem(_child(last)) != "Neg"


def _written_out(nodes: list[Node]) -> dict[str, Any]:
    """Losses that people write out: the mean of squared or absolute differences."""
    stems = [_stem(node) for node in nodes]
    before = stems[: stems.index("Sub")] if "Sub" in stems else []
    kind = "mse" if "Pow" in before else "l1" if "Abs" in before else None
    if kind is None:
        return {}
    summed = "Sum" in before and not {"Mean", "Div", "Mul"}.intersection(before)
    reduction = {"loss_reduction": "sum"} if summed else {}
    return {"loss_kind": kind, **reduction, **_compared(nodes[stems.index("Sub")])}


# -- the graph -----------------------------------------------------------------------------------


def parts_reached(loss: Tensor, model: nn.Module) -> list[str]:
    """The model's outermost parts of which a parameter is in the loss's graph, in their order.

    Names only: nothing of the graph is kept.
    """
    owners = {id(p): name.partition(".")[0] for name, p in model.named_parameters()}
    parts = set()
    nodes = () if loss.grad_fn is None else _nodes(loss.grad_fn, lambda _: True)
    for count, node in enumerate(nodes):
        if count >= _MOST_OF_MODEL:
            return []
        parts.add(owners.get(id(getattr(node, "variable", None))))
    return [part for part in dict.fromkeys(owners.values()) if part in parts]


def last_operation(node: Node | None) -> str:
    """What made a tensor, but for reshaping and casts: `Sigmoid`, `Addmm`, or nothing."""
    made = (stem for one in _line(node, _KEEPING) if (stem := _stem(one)) not in _KEEPING)
    return next(made, "").removeprefix("Safe")


def _nodes(start: Node, passes: Callable[[Node], bool]) -> Iterator[Node]:
    """The nodes from the loss down, nearest first, behind those alone that are to be passed."""
    queue, seen = deque([start]), {start}
    while queue:
        node = queue.popleft()
        yield node
        if passes(node):
            for child in _children(node):
                if child not in seen:
                    seen.add(child)
                    queue.append(child)


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _child(node: Node) -> Node | None:
    return next(iter(_children(node)), None)


def _shape(node: Node | None) -> tuple[int, ...]:
    metadata = getattr(node, "_input_metadata", None)
    return tuple(metadata[0].shape) if metadata else ()


def _stem(node: Node | None) -> str:
    return "" if node is None else node.name().rstrip("0123456789").removesuffix("Backward")


def _passes(node: Node) -> bool:
    """Whether the arithmetic of a loss goes on behind the node."""
    return _stem(node) in _RESHAPING | _ARITHMETIC or _stem(node) in _NLL


def _line(node: Node | None, through: Container[str]) -> Iterator[Node]:
    """The node and the first children behind it, up to one that is not to be passed."""
    for _ in range(16):
        if node is not None:
            yield node
            node = _child(node) if _stem(node) in through else None


def _below(node: Node, *stems: str, through: Container[str] = _RESHAPING) -> Node | None:
    """The first of these nodes right under `node`, but for reshaping and casts."""
    return next((one for one in _line(_child(node), through) if _stem(one) in stems), None)


# -- where only a number is logged ---------------------------------------------------------------

_TOLERANCE = 1e-3
Floats = NDArray[np.float64]


def guess(rows: Floats, gradient: Floats) -> dict[str, Any]:
    """The kind of loss behind the gradient of these rows of the output, or nothing.

    The gradient of a cross-entropy with respect to logits is softmax − target, up to a factor; with
    respect to log-probabilities it is the target alone. No other usual loss has either form.
    """
    classes = rows.shape[-1]
    if classes < 2 or rows.shape != gradient.shape or not np.isfinite([rows, gradient]).all():
        return {}
    used = gradient.any(axis=1)  # ignored rows have no gradient
    rows, gradient = rows[used], gradient[used]
    target = gradient < 0
    if len(rows) < 2 or (target.sum(axis=1) != 1).any():
        return {}
    others = ~target
    known = {"classes": classes, "chance": math.log(classes)}
    if not gradient[others].any():
        return {"loss_kind": "nll", **known} if _equal(np.exp(rows).sum(axis=1), 1.0) else {}
    shares = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    scale = -gradient[target] / (1.0 - shares[target] + 1e-300)
    if not _equal(gradient[others], (scale[:, None] * shares)[others]):
        return {}
    probabilities = (rows >= 0).all() and _equal(rows.sum(axis=1), 1.0)
    fed = "probabilities" if probabilities else "logits"
    return {"loss_kind": "cross_entropy", **known, "loss_fed_with": fed}


def _equal(numbers: Floats, expected: Floats | float) -> bool:
    """Whether all numbers are as expected, up to the noise of 32 bits."""
    largest = float(np.max(np.abs(expected)))
    return bool((np.abs(numbers - expected) <= _TOLERANCE * largest).all())
