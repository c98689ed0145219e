"""`drift`: what moved between two checkpoints, and what did not.

An adapter (LoRA) is compared with the weights it changes: the change is B·A, never written out.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.blocks import Access, array_of, blocks, close_all, reading
from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import FileId, Index, Shard, TensorEntry, owner_of
from gradwatch.checkpoints.limits import BLOCK
from gradwatch.checkpoints.measure import measure_tensors
from gradwatch.checkpoints.parallel import ScanOptions, WorkUnit, do_work
from gradwatch.checkpoints.readers import open_index
from gradwatch.checkpoints.readers.files import opened, parse_json
from gradwatch.errors import GradwatchError
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.stats import Stat
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
    possible = (f"{ending}.weight" for ending in _endings(target))
    return next((name for name in possible if name in names), None)


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


FORMAT = 1
"""Number of the JSON's form; it grows when a field changes its meaning or goes."""
_Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class TensorDrift:
    """How far one tensor moved."""

    name: str
    name_after: str
    shape: tuple[int, ...]
    dtype_before: str
    dtype_after: str
    sums: DriftSums
    adapted: bool = False
    """Whether the change comes from an adapter."""

    @property
    def moved(self) -> bool:
        """Whether a single element differs."""
        return self.sums.changed > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; shares that an adapter's factors do not show are None."""
        sums, count = self.sums, max(self.sums.count, 1)
        return {
            "name": self.name,
            "name_after": self.name_after,
            "shape": list(self.shape),
            "dtype_before": self.dtype_before,
            "dtype_after": self.dtype_after,
            "moved": self.moved,
            "relative_change": sums.relative_change,
            "cosine": sums.cosine,
            "sign_flip_fraction": None if self.adapted else sums.flipped / count,
            "changed_fraction": None if self.adapted else sums.changed / count,
            "zero_fraction_before": None if self.adapted else sums.zeros_before / count,
            "zero_fraction_after": None if self.adapted else sums.zeros_after / count,
            "norm_before": math.sqrt(sums.before),
            "norm_after": math.sqrt(sums.after),
            "nonfinite": sums.nonfinite,
            "adapter": self.adapted,
        }


@dataclass(frozen=True)
class Drift:
    """Two checkpoints compared."""

    before: str
    after: str
    tensors: tuple[TensorDrift, ...]
    renamed: dict[str, str]
    """Name before → name after."""
    reshaped: dict[str, _Shapes]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    not_compared: dict[str, str]
    """Name → reason."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Weight matrices that did not change by a bit, as one finding; none where all moved."""
        return _findings(self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, as `gradwatch drift --json` prints it."""
        return {
            "format": FORMAT,
            "before": self.before,
            "after": self.after,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "renamed": self.renamed,
            "reshaped": {name: [list(a), list(b)] for name, (a, b) in self.reshaped.items()},
            "missing": list(self.missing),
            "added": list(self.added),
            "not_compared": self.not_compared,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def drift(before: str | Path, after: str | Path, *, options: ScanOptions | None = None) -> Drift:
    """Compare two checkpoints tensor by tensor; `after` may be an adapter of `before`."""
    options = options or ScanOptions()
    old, new = open_index(before), open_index(after)
    adapters = adapters_of(new, {tensor.name for tensor in old.tensors})
    if adapters:
        return _adapted(old, new, adapters)
    old_tensors, new_tensors = _by_name(old), _by_name(new)
    partners = _partners(old, new, options)
    pairs = [(old_tensors[a], new_tensors[b]) for a, b in partners.items()]
    places = {name: place for place, name in enumerate(old_tensors)}
    comparable = [(a, b) for a, b in pairs if a.shape == b.shape]
    comparable.sort(key=lambda pair: places[pair[0].name])
    tensors, not_compared = _compared(old, new, comparable, options)
    paired = set(partners.values())
    return Drift(
        old.path,
        new.path,
        tensors,
        {a: b for a, b in partners.items() if a != b},
        {a.name: (a.shape, b.shape) for a, b in pairs if a.shape != b.shape},
        tuple(name for name in old_tensors if name not in partners),
        tuple(name for name in new_tensors if name not in paired),
        not_compared,
    )


def _adapted(old: Index, new: Index, adapters: Sequence[LoraAdapter]) -> Drift:
    """Every weight of the base that has an adapter, moved by it or not at all."""
    base = {tensor.name: tensor for tensor in old.tensors}
    drifts: list[TensorDrift] = []
    skipped: dict[str, str] = {}
    try:
        for name, adapter in {adapter.target: adapter for adapter in adapters}.items():
            tensor = base[name]
            if len(tensor.shards) != 1 or len(tensor.shape) != 2:
                skipped[name] = "it lies in several pieces or is no matrix"
                continue
            sums = adapter_sums(old, tensor, new, adapter)
            drifts.append(_tensor_drift(tensor, tensor, sums, adapted=True))
    finally:
        close_all()
    return Drift(old.path, new.path, tuple(drifts), {}, {}, (), (), skipped)


def _tensor_drift(
    a: TensorEntry, b: TensorEntry, sums: DriftSums, *, adapted: bool = False
) -> TensorDrift:
    return TensorDrift(
        a.name, b.name, a.shape, str(a.element), str(b.element), sums, adapted=adapted
    )


def _findings(tensors: Sequence[TensorDrift]) -> tuple[Finding, ...]:
    """Layers that did not move by a bit while others did; or nothing moved at all."""
    weights = [t for t in tensors if len(t.shape) >= 2 and "float" in t.dtype_before]
    still = [t for t in weights if not t.moved]
    if not still:
        return ()
    everything = not any(t.moved for t in tensors)
    if everything:
        message = f"the two checkpoints are equal: none of {len(tensors)} tensors moved"
        cause = "Nothing was trained between them, or the same file was given twice."
    else:
        message = (
            f"{len(still)} of {len(weights)} weight matrices did not change by a bit, "
            f"the first is {still[0].name}"
        )
        cause = "These layers were frozen, left out of the optimizer, or got no gradient."
    return (
        Finding(
            check="not-updated",
            severity=Severity.CRITICAL if everything else Severity.WARNING,
            layers=tuple(dict.fromkeys(owner_of(t.name) for t in still))[:8],
            first_step=0,
            last_step=1,
            message=message,
            evidence=tuple(
                Evidence(Stat.UPDATE_RATIO, t.name, 1, t.sums.relative_change, 0.0)
                for t in still[:8]
            ),
            cause=cause,
            advice=(
                "If they should train: check requires_grad, and that the optimizer has them.",
                "If they are frozen on purpose, all is well.",
            ),
        ),
    )


# -- which tensor is which -------------------------------------------------------------------------


def _by_name(index: Index) -> dict[str, TensorEntry]:
    """Aliases included: a tied weight may be saved under either name."""
    tensors = {tensor.name: tensor for tensor in index.tensors}
    for tensor in index.tensors:
        for alias in tensor.aliases:
            tensors.setdefault(alias, replace(tensor, name=alias, aliases=()))
    return tensors


def _partners(old: Index, new: Index, options: ScanOptions) -> dict[str, str]:
    """Name before → name after: by name, then by the end of the name, then by equal content."""
    before, after = _by_name(old), _by_name(new)
    partners = {name: name for name in before if name in after}
    for match in (_by_ending, partial(_by_content, old, new, options)):
        taken = set(partners.values())
        rest_before = [name for name in before if name not in partners]
        rest_after = [name for name in after if name not in taken]
        if rest_before and rest_after:
            partners |= match(rest_before, rest_after)
    return partners


def _matched(candidates: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
    """Each name with its only candidate, unless another name has it already."""
    partners: dict[str, str] = {}
    taken: set[str] = set()
    for name, alike in candidates:
        if name not in partners and len(alike) == 1 and alike[0] not in taken:
            partners[name] = alike[0]
            taken.add(alike[0])
    return partners


def _by_ending(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """A prefix was added or taken away: one name ends with the other, in a single way."""
    endings: dict[str, list[str]] = {}
    for name in after:
        for ending in _endings(name):
            endings.setdefault(ending, []).append(name)
    return _matched(
        (old, [new for new in endings.get(ending, ()) if ending in (old, new)])
        for old in before
        for ending in _endings(old)
    )


def _endings(name: str) -> list[str]:
    """The name, and what is left of it without its first one to four words."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(min(5, len(words)))]


def _by_content(
    old: Index, new: Index, options: ScanOptions, before: Iterable[str], after: Iterable[str]
) -> dict[str, str]:
    """Equal shape and elements, in a single tensor of `after`."""
    places: dict[object, list[str]] = {}
    for name, content in _contents(new, set(after), options).items():
        places.setdefault(content, []).append(name)
    contents = _contents(old, set(before), options)
    return _matched((name, places.get(content, ())) for name, content in contents.items())


def _contents(index: Index, names: set[str], options: ScanOptions) -> dict[str, object]:
    """Shape and hash of the tensors of these names."""
    some = replace(index, tensors=tuple(t for t in index.tensors if t.name in names))
    quiet = replace(options, progress=lambda done, total: None)
    measured = measure_tensors(some, quiet, full=False, hashed=True)
    return {stats.name: (stats.tensor.shape, stats.content_hash) for stats in measured}


# -- comparing -------------------------------------------------------------------------------------

_Side = tuple[FileId, Shard, Element]
"""One of two tensors: what `blocks` takes."""


def _compared(
    old: Index,
    new: Index,
    pairs: Sequence[tuple[TensorEntry, TensorEntry]],
    options: ScanOptions,
) -> tuple[tuple[TensorDrift, ...], dict[str, str]]:
    """The drift of each pair, and of those that could not be compared the reason."""
    units: list[WorkUnit[DriftSums]] = []
    drifts: list[TensorDrift] = []
    totals: list[DriftSums] = []
    """Of each unit, where its sums belong."""
    skipped: dict[str, str] = {}
    for a, b in pairs:
        shards = _aligned(a, b)
        if shards is None:
            skipped[a.name] = "it is cut into pieces in two different ways"
            continue
        drifts.append(_tensor_drift(a, b, DriftSums()))
        for left, right in shards:
            before = old.files[left.file], left, a.element
            after = new.files[right.file], right, b.element
            size = left.count * (a.element.size + b.element.size)
            files = frozenset((before[0], after[0]))
            units.append(WorkUnit(compare_shards, (before, after), size, files))
            totals.append(drifts[-1].sums)
    path, size = f"{old.path} or {new.path}", old.reach + new.reach
    for total, part in zip(totals, do_work(units, options, path, size), strict=True):
        total += part
    return tuple(drifts), skipped


def compare_shards(access: Access, before: _Side, after: _Side) -> DriftSums:
    """One pass over both."""
    sums, step = DriftSums(), BLOCK // 4
    for a, b in zip(blocks(access(), *before), blocks(access(), *after), strict=True):
        x, y = a.values, b.values
        for begin in range(0, x.size, step):
            sums.add(x[begin : begin + step], y[begin : begin + step])
    return sums


def _aligned(first: TensorEntry, second: TensorEntry) -> list[tuple[Shard, Shard]] | None:
    """The shards of two tensors of one shape, side by side; cut along rows where they differ."""
    if len(first.shards) == len(second.shards) == 1:
        return [(first.shards[0], second.shards[0])]
    boxes = {(shard.start, shard.shape): shard for shard in second.shards}
    if {(shard.start, shard.shape) for shard in first.shards} == set(boxes):
        return [(shard, boxes[shard.start, shard.shape]) for shard in first.shards]
    shards = [(t, shard) for t in (first, second) for shard in t.shards]
    if not all(t.whole_rows(s) and s.shape and s.rows and s.row_access for t, s in shards):
        return None
    edges = {edge for _, s in shards for edge in (s.first_row, s.first_row + s.rows)}
    return [(_rows(first, a, b), _rows(second, a, b)) for a, b in pairwise(sorted(edges))]


def _rows(tensor: TensorEntry, begin: int, end: int) -> Shard:
    """Some rows as a shard of their own; the shards cover the tensor, so one has them all."""
    for shard in tensor.shards:
        first = shard.first_row
        if first <= begin and end <= first + shard.rows:
            return shard.some_rows(begin - first, end - first, tensor.element.size)
    raise GradwatchError(f"The parts of {tensor.name[:80]!r} do not cover it.")
