"""Adapters (LoRA) against the weights they change: the change is B·A, never written out."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.blocks import array_of, blocks, reading
from gradwatch.checkpoints.index import Index, TensorEntry
from gradwatch.checkpoints.limits import BLOCK
from gradwatch.checkpoints.readers.files import opened, parse_json
from gradwatch.errors import GradwatchError
from gradwatch.stats.drift import DriftSums

_LORA = re.compile(r"^(?P<target>.*?)\.lora_(?P<side>[AB])(?:\.[\w-]+)?(?:\.weight)?$")


@dataclass(frozen=True)
class LoraAdapter:
    """The two thin matrices of one target and their scale."""

    target: str
    down: TensorEntry
    up: TensorEntry
    scale: float


def adapters_of(index: Index, names: set[str]) -> list[LoraAdapter]:
    """The adapters of a checkpoint whose targets are among the `names` of a base."""
    pairs: dict[str, dict[str, TensorEntry]] = {}
    for tensor in index.tensors:
        match = _LORA.match(tensor.name)
        if match:
            pairs.setdefault(match["target"], {})[match["side"]] = tensor
    alpha, rank = _settings(Path(index.path))
    adapters = []
    for target, sides in pairs.items():
        base = _base(target, names)
        if base is None or set(sides) != {"A", "B"}:
            continue
        down, up = sides["A"], sides["B"]
        if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
            raise GradwatchError(
                f"{index.path}: the two matrices of the adapter {target[:80]!r} do not fit: "
                f"{list(up.shape)} and {list(down.shape)}."
            )
        scale = alpha / (rank or down.shape[0]) if alpha is not None else 1.0
        adapters.append(LoraAdapter(base, down, up, scale))
    return adapters


def _base(target: str, names: set[str]) -> str | None:
    """`base_model.model.layers.0.q` → `layers.0.q.weight`, whichever ending the base knows."""
    words = target.split(".")
    for start in range(min(5, len(words))):
        name = ".".join([*words[start:], "weight"])
        if name in names:
            return name
    return None


def _settings(path: Path) -> tuple[float | None, int | None]:
    """alpha and rank from the adapter_config.json beside the adapter, if it is there."""
    config = (path if path.is_dir() else path.parent) / "adapter_config.json"
    if not config.is_file():
        return None, None
    with opened(config) as file:
        settings = parse_json(file.read(0, min(file.size, 1 << 20)), str(config))
    alpha, rank = settings.get("lora_alpha"), settings.get("r")
    return (
        float(alpha) if isinstance(alpha, int | float) else None,
        rank if type(rank) is int and rank > 0 else None,
    )


def adapter_sums(
    base: Index, tensor: TensorEntry, adapters: Index, adapter: LoraAdapter
) -> DriftSums:
    """W against W + scale · B·A, from products of thin matrices only."""
    down = _small_matrix(adapters, adapter.down)
    up = _small_matrix(adapters, adapter.up) * adapter.scale
    if (up.shape[0], down.shape[1]) != tensor.shape:
        raise GradwatchError(
            f"The adapter of {tensor.name[:80]!r} makes {[up.shape[0], down.shape[1]]}; "
            f"the base has {list(tensor.shape)}."
        )
    sums = DriftSums(count=tensor.count)
    (shard,) = tensor.shards
    for block in blocks(reading(), base.files[shard.file], shard, tensor.element):
        table = block.values.reshape(block.rows, -1).astype(np.float64)
        rows = up[block.first_row : block.first_row + block.rows]
        sums.before += float(np.vdot(table, table))
        sums.product += float(np.vdot(table @ down.T, rows))
    change = float(np.vdot(up.T @ up, down @ down.T))
    sums.difference = max(change, 0.0)
    sums.after = max(sums.before + 2 * sums.product + change, 0.0)
    sums.product += sums.before
    sums.changed = sums.count if change > 0 else 0
    return sums


def _small_matrix(index: Index, tensor: TensorEntry) -> NDArray[np.float64]:
    if tensor.count > 4 * BLOCK or len(tensor.shards) != 1:
        raise GradwatchError(f"The adapter matrix {tensor.name[:80]!r} is too large for one.")
    matrix = array_of(index, tensor).astype(np.float64)
    if not math.isfinite(float(np.sum(matrix))):
        raise GradwatchError(f"The adapter matrix {tensor.name[:80]!r} holds NaN or Inf.")
    return matrix
