"""`drift`: what moved between two checkpoints, and what did not."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from gradwatch.checkpoints.access import Reading, close_all, mapped
from gradwatch.checkpoints.index import Index, Tensor
from gradwatch.checkpoints.movement.adapters import adapter_sums, adapters_of
from gradwatch.checkpoints.movement.comparing import Comparison, Sums, aligned, compare, side
from gradwatch.checkpoints.movement.pairs import Pairing, paired
from gradwatch.checkpoints.movement.result import Drift, TensorDrift, findings_of
from gradwatch.checkpoints.readers import open_index
from gradwatch.checkpoints.scanning import Means, do_work, measure_checkpoint

__all__ = ["Drift", "TensorDrift", "drift"]


def drift(before: str | Path, after: str | Path, *, means: Means | None = None) -> Drift:
    """Compare two checkpoints tensor by tensor; `after` may be an adapter of `before`."""
    means = means or Means()
    old, new = open_index(before), open_index(after)
    adapters = adapters_of(new, {tensor.name for tensor in old.tensors})
    if adapters:
        return _adapted(old, new)
    pairing = _paired(old, new, means)
    tasks, tensors, skipped = _tasks(old, new, pairing)
    found = do_work(_joint(old, new), tasks, compare_alone, compare_in_worker, means)
    sums = [Sums() for _ in tensors]
    for task, part in zip(tasks, found, strict=True):
        sums[task.number] += part
    drifts = tuple(
        TensorDrift(a.name, b.name, a.shape, str(a.element), str(b.element), total)
        for (a, b), total in zip(tensors, sums, strict=True)
    )
    return Drift(
        old.path,
        new.path,
        drifts,
        pairing.renamed,
        pairing.reshaped,
        tuple(pairing.missing),
        tuple(pairing.added),
        skipped,
        findings_of(drifts),
    )


def compare_alone(task: Comparison) -> Sums:
    return compare(task, Reading(), Reading())


def compare_in_worker(task: Comparison) -> Sums:
    return compare(task, mapped(), mapped())


def _paired(old: Index, new: Index, means: Means) -> Pairing:
    """By name; where names are left on both sides, the bits of what is left are compared too."""
    before, after = _named(old), _named(new)
    first = paired(before, after)
    if not (first.missing and first.added):
        return first
    quiet = replace(means, progress=lambda done, total: None)
    marks: dict[str, int] = {}
    for index, names, prefix in ((old, first.missing, ""), (new, first.added, "\n")):
        rest = replace(index, tensors=tuple(t for t in index.tensors if t.name in set(names)))
        measured = measure_checkpoint(0, rest, quiet, full=False, marked=True)
        marks |= {prefix + m.name: m.mark for m in measured.tensors}
    return paired(before, after, marks)


def _named(index: Index) -> dict[str, Tensor]:
    """By name, aliases included: a tied weight may be saved under either."""
    found = {tensor.name: tensor for tensor in index.tensors}
    for tensor in index.tensors:
        for alias in tensor.aliases:
            found.setdefault(alias, replace(tensor, name=alias, aliases=()))
    return found


def _tasks(
    old: Index, new: Index, pairing: Pairing
) -> tuple[list[Comparison], list[tuple[Tensor, Tensor]], dict[str, str]]:
    tasks: list[Comparison] = []
    tensors: list[tuple[Tensor, Tensor]] = []
    skipped: dict[str, str] = {}
    for a, b in pairing.same:
        pieces = aligned(a, b)
        if pieces is None:
            skipped[a.name] = "it is cut into pieces in two different ways"
            continue
        tasks += [
            Comparison(len(tensors), side(old, a, left), side(new, b, right))
            for left, right in pieces
        ]
        tensors.append((a, b))
    return tasks, tensors, skipped


def _joint(old: Index, new: Index) -> Index:
    """Both together, for deciding where the work is done."""
    return replace(old, path=f"{old.path} or {new.path}", tensors=(*old.tensors, *new.tensors))


def _adapted(old: Index, new: Index) -> Drift:
    """Every weight of the base, moved by its adapter or not at all."""
    base = {tensor.name: tensor for tensor in old.tensors}
    work = partial(adapter_sums, old)
    drifts, skipped = [], {}
    try:
        adapters = {a.target: a for a in adapters_of(new, set(base))}
        for name, adapter in adapters.items():
            tensor = base[name]
            if len(tensor.pieces) != 1 or len(tensor.shape) != 2:
                skipped[name] = "it lies in several pieces or is no matrix"
                continue
            sums = work(tensor, new, adapter)
            kind = str(tensor.element)
            drifts.append(TensorDrift(name, name, tensor.shape, kind, kind, sums, adapted=True))
    finally:
        close_all()
    found = tuple(drifts)
    return Drift(old.path, new.path, found, {}, {}, (), (), skipped, findings_of(found))
