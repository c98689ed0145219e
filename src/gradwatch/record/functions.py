"""What relu, tanh, sigmoid, softmax and attention did, read where autograd keeps their results.

On accelerators the shares of relu, tanh and sigmoid are counted there; the entropies of softmax and
attention are not taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.graph import Node, saved_dim, saved_tensor
from gradwatch.record.looking import device_readable, readable
from gradwatch.record.tensors import spread
from gradwatch.stats import Stat

_ROWS = 16
_RELU = "ReluBackward0"
_FLAT_TANH, _FLAT_SIGMOID = 0.97, 0.03
"""Beyond so much, or so near to 0 or 1, the slope is nearly zero."""
_SAMPLED = 1 << 20


@dataclass(frozen=True)
class WeightedStat:
    """One number of one activation function; several of one layer are averaged by weight.

    On an accelerator the value is a count that is not here yet; over the weight it is a share.
    """

    stat: Stat
    value: float | Tensor
    weight: float


def is_relu(node: Node) -> bool:
    """Whether autograd's node is a ReLU, whose zeros mean that a unit did not fire."""
    return bool(node.name() == _RELU)


def read(node: Node) -> WeightedStat | None:
    """What the node says, or None where it is no activation function or must not be looked into."""
    reader = _READERS.get(node.name())
    if reader is None:
        return None
    try:
        with torch.no_grad():
            return reader(node)
    except RuntimeError:
        return None  # changed in place since, or freed: autograd itself would refuse it


def _saved(node: Node, name: str, *, on_device: bool = False) -> Tensor | None:
    tensor = saved_tensor(node, name)
    if tensor is None or not tensor.numel():
        return None
    seen = readable(tensor) or (on_device and device_readable(tensor))
    return tensor.detach() if seen else None


def _share(
    stat: Stat, condition: Callable[[Tensor], Tensor]
) -> Callable[[Node], WeightedStat | None]:
    """The share of an evenly spread sample of the results of which a condition is true."""

    def read_share(node: Node) -> WeightedStat | None:
        result = _saved(node, "result", on_device=True)
        if result is None:
            return None
        values = spread(result, _SAMPLED)
        count, size = condition(values).sum(), float(values.numel())
        return WeightedStat(stat, int(count) / size if readable(result) else count, size)

    return read_share


def _softmax(node: Node) -> WeightedStat | None:
    result = _saved(node, "result")
    if result is None or result.ndim < 2:
        return None
    rows = result.movedim(saved_dim(node, result.ndim), -1)
    if rows.ndim == 2:
        rows = rows[:, None]
    shares = rows.reshape(-1, *rows.shape[-2:])
    shares = _thin(_thin(shares, 0), 1).to(torch.float64)
    return _entropy(shares.numpy())


def _attention(node: Node) -> WeightedStat | None:
    """From query and key of 16 rows of 16 heads, since the product itself is never kept."""
    query, key = _saved(node, "query"), _saved(node, "key")
    if query is None or key is None or query.ndim != 4:
        return None
    mask = None
    # Safe to unpack: hooks on saved tensors would have been on query and key as well.
    if getattr(node, "_saved_attn_mask", None) is not None:
        mask = _saved(node, "attn_mask")
        if mask is None:
            return None
    heads, rows = query.shape[1], _picks(query.shape[-2])
    # Picked before anything is copied: these are views of large tensors.
    picked = [divmod(index, heads) for index in _picks(query.shape[0] * heads)]
    places = [pair[0] for pair in picked], [pair[1] for pair in picked]
    shared = heads // key.shape[1]  # query heads that use the same key
    keys = key[places[0], [head // shared for head in places[1]]]
    logits = query[places][:, rows].double() @ keys.double().mT
    scale = getattr(node, "_saved_scale", None)
    logits *= query.shape[-1] ** -0.5 if scale is None else float(scale)
    if mask is not None:
        logits += mask.expand(*query.shape[:-1], key.shape[-2])[places][:, rows]
    if getattr(node, "_saved_is_causal", False):
        hidden = torch.arange(key.shape[-2])[None, :] > torch.tensor(rows)[:, None]
        logits = logits.masked_fill(hidden, float("-inf"))
    return _entropy(logits.softmax(-1).numpy())


def _picks(size: int) -> list[int]:
    """At most 16 indices spread over a dimension, its last one included."""
    count = min(size, _ROWS)
    return [(index + 1) * size // count - 1 for index in range(count)]


def _thin(tensor: Tensor, dim: int) -> Tensor:
    size = tensor.shape[dim]
    return tensor if size <= _ROWS else tensor[(slice(None),) * dim + (_picks(size),)]


def _entropy(shares: NDArray[np.float64]) -> WeightedStat | None:
    """Mean entropy of the rows of [matrix, row, key], each relative to ln of the keys it can see.

    A key that no matrix gives any weight is masked. Rows that see one key have no choice and are
    left out; but if every row sees only one, they are saturated rather than masked.
    """
    if not np.isfinite(shares).all() or shares.shape[-1] < 2:
        return None
    visible = (shares > 0).any(axis=0).sum(axis=-1)
    if (visible < 2).all():
        visible = np.full_like(visible, shares.shape[-1])
    rows = visible > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, -shares * np.log(shares), 0.0)
    relative = terms.sum(axis=-1)[:, rows] / np.log(visible[rows])
    return WeightedStat(Stat.ACT_ENTROPY, float(relative.mean()), float(relative.size))


_READERS: dict[str, Callable[[Any], WeightedStat | None]] = {
    _RELU: _share(Stat.ACT_GATE_ZERO_FRACTION, lambda values: values == 0),
    "TanhBackward0": _share(Stat.ACT_FLAT_FRACTION, lambda values: values.abs() > _FLAT_TANH),
    "SigmoidBackward0": _share(
        Stat.ACT_FLAT_FRACTION, lambda values: (values - 0.5).abs() > 0.5 - _FLAT_SIGMOID
    ),
    "SoftmaxBackward0": _softmax,
    "SafeSoftmaxBackward0": _softmax,
    "ScaledDotProductFlashAttentionForCpuBackward0": _attention,
}
