"""What relu, tanh, sigmoid, softmax and attention did, read where autograd keeps their results.

Only on the CPU: on devices they are not looked at.
"""

from collections.abc import Callable
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.graph import Node, saved_dim, saved_tensor
from gradwatch.record.looking import readable
from gradwatch.record.tensors import spread
from gradwatch.stats import Stat

_ROWS, _PARTS = 16, 4
"""Rows of attention that are read, and items of a batch and heads."""
_FLAT_TANH, _FLAT_SIGMOID = 0.97, 0.03
"""Beyond so much, or so near to 0 or 1, the slope is nearly zero."""
_SAMPLED = 1 << 16

Reading = tuple[float, float]
"""A value, and of how many elements or rows: several of one layer are averaged by weight."""


def read(node: Node) -> tuple[Stat, Reading] | None:
    """What the node says, or None where it is no activation function or must not be looked into."""
    known = _FUNCTIONS.get(node.name())
    if known is None:
        return None
    try:
        with torch.no_grad():
            value, weight = known[1](node)
    except RuntimeError:
        return None  # changed in place since, or freed: autograd itself would refuse it
    return (known[0], (value, weight)) if weight else None


def _saved(node: Node, name: str) -> Tensor:
    tensor = saved_tensor(node, name)
    if tensor is None or not tensor.numel() or not readable(tensor):
        raise RuntimeError(f"not to be looked into: {name}")
    return tensor.detach()


def _share(condition: Callable[[Tensor], Tensor]) -> Callable[[Node], Reading]:
    """The share of an evenly spread sample of the results of which a condition is true."""

    def read_share(node: Node) -> Reading:
        held = condition(spread(_saved(node, "result"), _SAMPLED))
        return int(held.sum()) / held.numel(), held.numel()

    return read_share


def _softmax(node: Node) -> Reading:
    result = _saved(node, "result")
    if result.ndim < 2:
        return nan, 0.0
    rows = result.movedim(saved_dim(node, result.ndim), -1)
    if rows.ndim == 2:
        rows = rows[:, None]
    shares = rows.reshape(-1, *rows.shape[-2:])
    return _entropy(shares[_picks(shares.shape[0])][:, _picks(shares.shape[1])])


def _attention(node: Node) -> Reading:
    """From query and key of 16 rows of 4 × 4 heads, since the product itself is never kept."""
    query, key = _saved(node, "query"), _saved(node, "key")
    rows = _picks(query.shape[-2])
    # Picked before anything is copied: these are views of large tensors.
    parts = tuple(slice(None, None, -(-size // _PARTS)) for size in query.shape[:2])
    logits = query[parts][:, :, rows].double() @ key[parts].double().mT
    scale = getattr(node, "_saved_scale", None)
    logits *= query.shape[-1] ** -0.5 if scale is None else float(scale)
    # Safe to unpack: hooks on saved tensors would have been on query and key as well.
    if getattr(node, "_saved_attn_mask", None) is not None:
        mask = _saved(node, "attn_mask").expand(*query.shape[:-1], key.shape[-2])
        logits += mask[parts][:, :, rows]
    if getattr(node, "_saved_is_causal", False):
        hidden = torch.arange(key.shape[-2])[None, :] > torch.tensor(rows)[:, None]
        logits = logits.masked_fill(hidden, float("-inf"))
    return _entropy(logits.softmax(-1).flatten(0, 1))


def _picks(size: int) -> list[int]:
    """At most 16 indices spread over a dimension, its last one included."""
    count = min(size, _ROWS)
    return [(index + 1) * size // count - 1 for index in range(count)]


def _entropy(weights: Tensor) -> Reading:
    """Mean entropy of the rows of [matrix, row, key], each relative to ln of the keys it can see.

    A key that no matrix gives any weight is masked. Rows that see one key have no choice and are
    left out; but if every row sees only one, they are saturated rather than masked.
    """
    shares: NDArray[np.float64] = weights.double().numpy()
    if not np.isfinite(shares).all() or shares.shape[-1] < 2:
        return nan, 0.0
    visible = (shares > 0).any(axis=0).sum(axis=-1)
    if (visible < 2).all():
        visible = np.full_like(visible, shares.shape[-1])
    rows = visible > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, -shares * np.log(shares), 0.0)
    relative = terms.sum(axis=-1)[:, rows] / np.log(visible[rows])
    return float(relative.mean()), float(relative.size)


_FUNCTIONS: dict[str, tuple[Stat, Callable[[Node], Reading]]] = {
    "ReluBackward0": (Stat.ACT_GATE_ZERO_FRACTION, _share(lambda x: x == 0)),
    "TanhBackward0": (Stat.ACT_FLAT_FRACTION, _share(lambda x: x.abs() > _FLAT_TANH)),
    "SigmoidBackward0": (
        Stat.ACT_FLAT_FRACTION,
        _share(lambda x: (x - 0.5).abs() > 0.5 - _FLAT_SIGMOID),
    ),
    "SoftmaxBackward0": (Stat.ACT_ENTROPY, _softmax),
    "SafeSoftmaxBackward0": (Stat.ACT_ENTROPY, _softmax),
    "ScaledDotProductFlashAttentionForCpuBackward0": (Stat.ACT_ENTROPY, _attention),
}
