"""The kind of loss, the classes it knows and what it is fed with, from its autograd graph."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from gradwatch.record.signals.trail import Node

_KINDS = {
    "BinaryCrossEntropyBackward0": "bce",
    "BinaryCrossEntropyWithLogitsBackward0": "bce_logits",
    "MseLossBackward0": "mse",
    "SmoothL1LossBackward0": "smooth_l1",
    "HuberLossBackward0": "huber",
    "CtcLossBackward0": "ctc",
    "SoftMarginLossBackward0": "soft_margin",
    "MultiMarginLossBackward0": "multi_margin",
}
_NLL = ("NllLossBackward0", "NllLoss2DBackward0")
_LOG_SOFTMAX = "LogSoftmaxBackward0"
_SQUASHED = ("SoftmaxBackward0", "SafeSoftmaxBackward0", "SigmoidBackward0")
_RESHAPING = {
    *("View", "UnsafeView", "Reshape", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze"),
    *("Slice", "Select", "Index", "Expand", "AsStrided", "Alias", "Clone", "ToCopy"),
}
_ARITHMETIC = {
    *("Mean", "Sum", "Neg", "Mul", "Div", "Add", "Sub", "Pow", "Abs"),
    *("MaskedFill", "Where", "Cat", "Stack"),
}
_SUM = 2  # torch's number of reduction="sum"
_LIMIT = 200


def describe_loss(loss: Any) -> dict[str, Any]:
    """Keys for `run.info`: `loss_kind`, `classes`, `chance`, `loss_fed_with`, where known.

    Reads names and shapes of the graph only, so it works before and after the backward.
    """
    if not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
        return {}
    found = [node for node in _arithmetic(loss.grad_fn) if _kind(node) is not None]
    if any(node.name() in _NLL for node in found):
        # label smoothing shows the log-softmax itself beside the loss
        found = [node for node in found if node.name() != _LOG_SOFTMAX]
    kinds = {kind for node in found if (kind := _kind(node)) is not None}
    if not found:
        return _from_arithmetic(loss.grad_fn)
    if len(kinds) > 1:
        return {"loss_kind": "sum"}
    return {"loss_kind": kinds.pop(), **_details(found[0], _factor(loss.grad_fn, found[0]))}


def _kind(node: Node) -> str | None:
    name = node.name()
    if name in _NLL:
        return "cross_entropy" if _below(node, _LOG_SOFTMAX) is not None else "nll"
    if name == _LOG_SOFTMAX:
        return "cross_entropy"
    return _KINDS.get(name)


def _details(node: Node, factor: float | None) -> dict[str, Any]:
    kind = _kind(node)
    known: dict[str, Any] = {}
    if kind == "cross_entropy":
        inner = node if node.name() == _LOG_SOFTMAX else _below(node, _LOG_SOFTMAX)
        known["classes"] = _classes(inner)
        fed = _below(inner, *_SQUASHED) is not None
        known["loss_fed_with"] = "probabilities" if fed else "logits"
    elif kind == "nll":
        known["classes"] = _channel(node)
    elif kind == "bce_logits":
        known["classes"] = 2
        fed = _below(node, *_SQUASHED) is not None
        known["loss_fed_with"] = "probabilities" if fed else "logits"
    elif kind == "bce":
        known["classes"] = 2
    known = {key: value for key, value in known.items() if value is not None}
    averaged = getattr(node, "_saved_reduction", 1) != _SUM
    if known.get("classes", 0) >= 2 and averaged and factor is not None:
        known["chance"] = math.log(known["classes"]) * factor
    return known


def _classes(node: Node) -> int | None:
    """The size of the dimension the log-softmax runs over."""
    shape = _shape(node)
    dim = int(getattr(node, "_saved_dim", -1))
    dim = dim - (1 << 64) if dim > len(shape) else dim
    return int(shape[dim]) if shape and -len(shape) <= dim < len(shape) else None


def _channel(node: Node) -> int | None:
    """The classes a negative log-likelihood chooses from: the channel of what it was given."""
    child = node.next_functions[0][0] if node.next_functions else None
    shape = _shape(child) if child is not None else ()
    return int(shape[min(1, len(shape) - 1)]) if shape else None


def _shape(node: Node) -> tuple[int, ...]:
    metadata = getattr(node, "_input_metadata", None)
    return tuple(metadata[0].shape) if metadata else ()


def _arithmetic(start: Node) -> Iterator[Node]:
    """The nodes from the loss down to where the arithmetic of a loss ends, nearest first."""
    queue, seen = deque([start]), {start}
    while queue and len(seen) < _LIMIT:
        node = queue.popleft()
        yield node
        if not _passes(node):
            continue
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)


def _stem(node: Node) -> str:
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _passes(node: Node) -> bool:
    return _stem(node) in _RESHAPING | _ARITHMETIC or node.name() in _NLL


def _below(node: Node, *names: str) -> Node | None:
    """The first of these nodes right under `node`, but for reshaping and casts."""
    current = node
    for _ in range(8):
        children = [child for child, _ in current.next_functions if child is not None]
        if not children:
            return None
        current = children[0]
        if current.name() in names:
            return current
        if _stem(current) not in _RESHAPING:
            return None
    return None


def _factor(start: Node, loss: Node) -> float | None:
    """What the loss was multiplied by before it was logged; None where that cannot be read."""
    node, factor = start, 1.0
    for _ in range(16):
        if node is loss:
            return factor
        stem = _stem(node)
        children = [child for child, _ in node.next_functions if child is not None]
        if stem == "Div" and children and _stem(children[0]) == "Neg":
            return factor  # soft targets: the mean over the batch
        if stem in ("Mul", "Div") and len(children) == 1:
            number = _number(node)
            if number is None or number == 0.0:
                return None
            factor = factor * number if stem == "Mul" else factor / number
        elif stem not in _RESHAPING | {"Mean"}:
            # sums of parts, as label smoothing and soft targets have them, keep the scale
            return factor
        if not children:
            return None
        node = children[0]
    return None


def _number(node: Node) -> float | None:
    """The number a node multiplied or divided by, where autograd kept it in plain sight."""
    raw = getattr(node, "_raw_saved_other", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    try:
        value = node._saved_other
    except RuntimeError:  # freed by the backward
        return None
    if isinstance(value, torch.Tensor) and value.is_cpu and value.numel() == 1:
        return float(value.detach().numpy().reshape(()))
    return None


def _from_arithmetic(start: Node) -> dict[str, Any]:
    """Losses people write out: the mean of squared or absolute differences."""
    stems = [_stem(node) for node in _arithmetic(start)][:6]
    if "Sub" in stems and "Pow" in stems[: stems.index("Sub")]:
        return {"loss_kind": "mse"}
    if "Sub" in stems and "Abs" in stems[: stems.index("Sub")]:
        return {"loss_kind": "l1"}
    return {}
