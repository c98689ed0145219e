"""The kind of loss, the classes it knows and what it is fed with.

From the autograd graph of the loss; where only a number is logged, from rows of the model's output
and their gradient.
"""

import math
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.rows import Reading
from gradwatch.record.signals.autograd import Node, saved_dim, saved_tensor
from gradwatch.record.signals.hooks import HookedSignal, ModelContext, root_is_compiled
from gradwatch.record.signals.tensors import first_floating, readable
from gradwatch.stats import Family

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
_DIFFERENCES = ("mse", "smooth_l1", "huber")
_NLL = ("NllLossBackward0", "NllLoss2DBackward0")
_LOG_SOFTMAX = "LogSoftmaxBackward0"
_SQUASHED = ("SoftmaxBackward0", "SafeSoftmaxBackward0", "SigmoidBackward0")
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
_LIMIT = 200
_STEPS = 3
_ROWS = 8
_MOST = 1 << 16
_TOLERANCE = 1e-3


def describe_loss(loss: Any) -> dict[str, Any]:
    """Keys for `run.info`: `loss_kind`, `classes`, `chance`, `loss_fed_with`, where known.

    Where the softmax runs over another dimension than the classes, `softmax_over` is its size.
    Where each sample of a batch is a class, `classes_are_samples`; where a difference of every
    output and every target was taken, `compared` has the shapes.

    Reads names and shapes of the graph only, so it works before and after the backward.
    """
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        return {}
    losses = [node for node in _arithmetic(loss.grad_fn) if _kind(node) is not None]
    if any(node.name() in _NLL for node in losses):
        # label smoothing shows the log-softmax itself beside the loss
        losses = [node for node in losses if node.name() != _LOG_SOFTMAX]
    kinds = {kind for node in losses if (kind := _kind(node)) is not None}
    if not losses:
        return _from_arithmetic(loss.grad_fn)
    if len(kinds) > 1:
        return {"loss_kind": "sum"}
    return {"loss_kind": kinds.pop(), **_details(losses[0], _factor(loss.grad_fn, losses[0]))}


def _kind(node: Node) -> str | None:
    name = node.name()
    if name in _NLL:
        return "cross_entropy" if _below(node, _LOG_SOFTMAX) is not None else "nll"
    if name == _LOG_SOFTMAX:
        return "cross_entropy"
    return _KINDS.get(name)


def _details(node: Node, factor: float | None) -> dict[str, Any]:
    kind, inner, classes = _kind(node), node, None
    if kind == "cross_entropy":
        inner = node if node.name() == _LOG_SOFTMAX else _below(node, _LOG_SOFTMAX)
        classes = _classes(inner)
    elif kind == "nll":
        classes = _channel(node)
    elif kind in ("bce", "bce_logits"):
        classes = 2
    over = _normalised_over(node)
    if over is not None and over != (chosen := _channel(node)):
        classes = chosen
    else:
        over = None
    details: dict[str, Any] = {} if classes is None else {"classes": classes}
    if over is not None:
        details["softmax_over"] = over
    if kind in ("cross_entropy", "bce_logits"):
        squashed = _below(inner, *_SQUASHED) is not None
        details["loss_fed_with"] = "probabilities" if squashed else "logits"
    averaged = getattr(node, "_saved_reduction", 1) != _SUM
    if not averaged:
        details["loss_reduction"] = "sum"
    if kind in _DIFFERENCES:
        details |= _compared(node)
    if kind == "cross_entropy" and inner is not None and _among_themselves(inner):
        details["classes_are_samples"] = True
    elif classes is not None and classes >= 2 and averaged and factor is not None:
        details["chance"] = math.log(classes) * factor
    return details


def _compared(node: Node) -> dict[str, Any]:
    """The shapes of n outputs and of the n × n differences that broadcasting made of them.

    Nobody means that who did not add the dimension himself; and of two tensors that both depend on
    the network the pairs are meant.
    """
    children = [child for child, _ in node.next_functions if child is not None]
    if len(children) != 1:
        return {}
    expanded = _stem(children[0]) == "Expand"
    both = _shape(children[0] if expanded else node)
    child = next((c for c, _ in children[0].next_functions), None) if expanded else children[0]
    if child is None or _stem(child) == "Unsqueeze":
        return {}
    given = _shape(child)
    count = math.prod(given)
    pairs = count > 1 and 1 <= len(given) <= 2 and both == (count, count) != given
    return {"compared": [list(given), list(both)]} if pairs else {}


def _classes(node: Node) -> int | None:
    """The size of the dimension the log-softmax runs over."""
    shape = _shape(node)
    dim = saved_dim(node, len(shape))
    return int(shape[dim]) if shape and -len(shape) <= dim < len(shape) else None


def _among_themselves(node: Node) -> bool:
    """Whether the classes are the samples of the batch (contrastive): chance grows with it."""
    shape = _shape(node)
    made = last_operation(node.next_functions[0][0]) if node.next_functions else ""
    return len(shape) == 2 and shape[0] == shape[1] and made != "Addmm"


def _channel(node: Node) -> int | None:
    """The classes a negative log-likelihood chooses from: the channel of what it was given."""
    child = node.next_functions[0][0] if node.next_functions else None
    shape = _shape(child) if child is not None else ()
    return int(shape[min(1, len(shape) - 1)]) if shape else None


def _normalised_over(node: Node) -> int | None:
    """The size of the dimension whose probabilities a negative log-likelihood was given.

    Nothing may have been cut out of them on the way.
    """
    if node.name() not in _NLL:
        return None
    made = _below(node, _LOG_SOFTMAX, through=_KEEPING)
    if made is None and (log := _below(node, "LogBackward0", through=_KEEPING)) is not None:
        made = _below(log, *_SQUASHED[:2], through=_KEEPING)
    return None if made is None else _classes(made)


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


def last_operation(node: Node | None) -> str:
    """What made a tensor, but for reshaping and casts: `Sigmoid`, `Addmm`, or nothing."""
    for _ in range(8):
        if node is None:
            return ""
        stem = _stem(node)
        if stem not in _KEEPING:
            return stem.removeprefix("Safe")
        node = next((child for child, _ in node.next_functions if child is not None), None)
    return ""


def _stem(node: Node) -> str:
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _passes(node: Node) -> bool:
    return _stem(node) in _RESHAPING | _ARITHMETIC or node.name() in _NLL


def _below(node: Node, *names: str, through: Container[str] = _RESHAPING) -> Node | None:
    """The first of these nodes right under `node`, but for reshaping and casts."""
    current = node
    for _ in range(8):
        children = [child for child, _ in current.next_functions if child is not None]
        if not children:
            return None
        current = children[0]
        if current.name() in names:
            return current
        if _stem(current) not in through:
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
    try:
        value = saved_tensor(node, "other")
    except RuntimeError:  # freed by the backward
        return None
    if value is not None and value.is_cpu and value.numel() == 1:
        return float(value.detach().numpy().reshape(()))
    return None


def _from_arithmetic(start: Node) -> dict[str, Any]:
    """Losses people write out: the mean of squared or absolute differences."""
    nodes = [node for node, _ in zip(_arithmetic(start), range(6), strict=False)]
    stems = [_stem(node) for node in nodes]
    before = stems[: stems.index("Sub")] if "Sub" in stems else []
    kind = "mse" if "Pow" in before else "l1" if "Abs" in before else None
    if kind is None:
        return {}
    summed = "Sum" in before and not {"Mean", "Div", "Mul"}.intersection(before)
    reduction = {"loss_reduction": "sum"} if summed else {}
    return {"loss_kind": kind, **reduction, **_compared(nodes[stems.index("Sub")])}


# -- trainings with several losses ---------------------------------------------------------------

_MOST_NODES = 5000
"""Nodes of a graph that are looked at; of a larger one nothing is said."""


def parts_reached(loss: Tensor, model: nn.Module) -> list[str]:
    """The model's outermost parts of which a parameter is in the loss's graph, in their order.

    Names only: nothing of the graph is kept, and it works before and after the backward.
    """
    owners = {id(p): name.partition(".")[0] for name, p in model.named_parameters()}
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    seen, parts = set(waiting), set()
    while waiting:
        if len(seen) > _MOST_NODES:
            return []
        node = waiting.pop()
        parts.add(owners.get(id(getattr(node, "variable", None)), ""))
        fresh = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= fresh
        waiting += fresh
    return [part for part in dict.fromkeys(owners.values()) if part in parts]


# -- where only a number is logged ---------------------------------------------------------------


class LossGuess(HookedSignal):
    """Keeps eight rows of the output on the first three steps; `loss_guess` is what they say.

    It is given only after those steps: where the loss itself is logged, its graph knows better.

    The gradient of a cross-entropy with respect to logits is softmax − target, up to a factor; with
    respect to log-probabilities it is the target alone. No other usual loss has either form.
    """

    what = "output rows"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._left = _STEPS
        self._rows: NDArray[np.float64] | None = None
        self._gradient: NDArray[np.float64] | None = None
        self._softmax_over: int | None = None
        self._guess: Mapping[str, Any] = {}

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Look at the output of one of the first steps; afterwards the guess stands."""
        self._unhook()
        self._step = step
        self._rows = self._gradient = None
        model = self._model()
        if self._left <= 0:
            self.loss_guess = self._guess
            return
        self._left -= 1
        if model is None or self._guess or self._may_not_hook:
            return
        if not root_is_compiled(model):
            self._hook_after(model, self._look)

    def _look(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tensor = first_floating(output)
        if (
            tensor is None
            or tensor.grad_fn is None
            or tensor.ndim < 2
            or not readable(tensor)
            or torch._C._current_graph_task_id() != -1
        ):
            return
        self._rows, self._softmax_over = _few(tensor), _sums_to_one(tensor)
        tensor.grad_fn.register_prehook(partial(self._keep, tensor.output_nr))

    def _keep(self, place: int, gradients: Sequence[Tensor | None]) -> None:
        # Autograd calls this, not a hook of ours: nothing else would catch what it raises.
        try:
            gradient = gradients[place]
            if self._gradient is None and gradient is not None and readable(gradient):
                self._gradient = _few(gradient)
        except Exception as error:
            self.fail(error)

    def collect(self, step: int) -> Iterable[Reading]:
        """No rows: what was seen makes the guess."""
        if self._rows is not None and self._gradient is not None:
            self._guess = guess(self._rows, self._gradient, self._softmax_over)
        self._rows = self._gradient = None
        return ()


def _few(tensor: Tensor) -> NDArray[np.float64]:
    """The first eight rows of the last dimension, in float64."""
    with torch.no_grad():
        plain = tensor.detach()
        rows = plain.reshape(-1, plain.shape[-1])[:_ROWS]
        copied: NDArray[np.float64] = rows.to(torch.float64).numpy().copy()
        return copied


def _sums_to_one(tensor: Tensor) -> int | None:
    """The size of a dimension, not the last, over which the numbers are log-probabilities."""
    with torch.no_grad():
        for dim, size in enumerate(tensor.shape[:-1]):
            place: list[int | slice] = [0] * (tensor.ndim - 1)
            place[dim] = slice(_MOST)
            lines = tensor.detach()[(*place, slice(_ROWS))].to(torch.float64).numpy()
            if 1 < size <= _MOST and (lines <= 0).all() and _equal(np.exp(lines).sum(axis=0), 1.0):
                return size
    return None


def guess(
    rows: NDArray[np.float64], gradient: NDArray[np.float64], softmax_over: int | None = None
) -> dict[str, Any]:
    """The kind of loss behind the gradient, or nothing.

    `softmax_over` is the size of another dimension than the last that sums to one.
    """
    classes = rows.shape[-1]
    if classes < 2 or rows.shape != gradient.shape or not np.isfinite([rows, gradient]).all():
        return {}
    used = np.abs(gradient).max(axis=1) > 0  # ignored rows have no gradient
    rows, gradient = rows[used], gradient[used]
    if len(rows) < 2 or ((gradient < 0).sum(axis=1) != 1).any():
        return {}
    target = np.arange(len(rows)), gradient.argmin(axis=1)
    others = np.ones(rows.shape, bool)
    others[target] = False
    chance = {"classes": classes, "chance": math.log(classes)}
    if not gradient[others].any():
        totals = np.exp(rows).sum(axis=1)
        if _equal(totals, 1.0):
            return {"loss_kind": "nll", **chance}
        wrong = {} if softmax_over is None else {"softmax_over": softmax_over}
        return {"loss_kind": "nll", **chance, **wrong} if wrong else {}
    shares = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    scale = -gradient[target] / (1.0 - shares[target] + 1e-300)
    expected = scale[:, None] * shares
    if not _equal(gradient[others], expected[others]):
        return {}
    probabilities = (rows >= 0).all() and _equal(rows.sum(axis=1), 1.0)
    fed = "probabilities" if probabilities else "logits"
    return {"loss_kind": "cross_entropy", **chance, "loss_fed_with": fed}


def _equal(numbers: NDArray[np.float64], expected: NDArray[np.float64] | float) -> bool:
    largest = float(np.max(np.abs(expected)))
    return bool((np.abs(numbers - expected) <= _TOLERANCE * largest).all())
