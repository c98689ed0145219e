"""What an optimizer's step did, in torch operations: updates of copied weights, Adam's ratio."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import ADAM, UPDATE
from gradwatch.record.backend_cpu import SAMPLE, pick
from gradwatch.record.device.chunks import BITS, WORK, count, counts_of, units
from gradwatch.record.device.engine import MOST_MEMORY, DeviceDivisors, Snapshot
from gradwatch.record.device.launches import MOST_LAUNCHES
from gradwatch.record.device.slabs import filling, flat, lay_out, with_nothing
from gradwatch.record.device.torch_plan import Planner
from gradwatch.record.device.transfer import Load, at_least_single, cleaned, sent_to
from gradwatch.record.rows import Parts
from gradwatch.record.tensors import aligned, local, number, on_accelerator

_INFINITY = float("inf")


def change(old: Tensor, new: Tensor, gradient: Tensor) -> Tensor:
    """[7, chunk]: coordinates that are the same, pulled at, both; norms of change and weight."""
    bits = BITS[old.itemsize]  # to compare NaN with NaN, and to tell −0 from 0
    same, pulled = old.view(bits) == new.view(bits), gradient != 0
    masks = count(same), count(pulled), count(same & pulled)
    away = cleaned(at_least_single(new) - at_least_single(old))
    counts = counts_of(*masks, dtype=away.dtype)
    return torch.stack([*counts, *_norm(away), *_norm(cleaned(old))])


def ratio(gradient: Tensor, second: Tensor, correction: Tensor, epsilon: Tensor) -> Tensor:
    """[4, chunk]: coordinates with √v̂ < ε, with a finite g/(√v̂+ε), and its norm."""
    root = (second / correction).sqrt_()
    small = count(root < epsilon)
    ratios = torch.div(gradient, root.add_(epsilon), out=root)
    finite = cleaned(ratios)
    counts = counts_of(small, count(finite == ratios), dtype=finite.dtype)
    return torch.stack([*counts, *_norm(finite)])


def _norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each chunk in units of its largest magnitude, and the unit; `x` is used up."""
    unit, inverse = units(torch.linalg.vector_norm(x, _INFINITY, dim=1))
    return torch.linalg.vector_norm(x.mul_(inverse[:, None]), 2, dim=1), unit


def _pick(tensor: Tensor) -> Tensor:
    """In the order of indices, which is the same for a weight and its gradient."""
    return pick(tensor.detach()).reshape(-1)


def _fitting(tensor: Tensor, like: Tensor) -> Tensor:
    fitting = aligned(tensor, like)
    assert fitting is not None
    return fitting


def copy_weights(planner: Planner, tensors: Sequence[Tensor | None]) -> Snapshot:
    """Whole copies in half of MOST_MEMORY: the comparison takes the other half."""
    need = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    whole = need <= MOST_MEMORY // 2
    large = [float(t is not None and t.numel() > SAMPLE) * 3 for t in tensors]
    costs = np.array([0.01 * (t is not None) for t in tensors]) + (0 if whole else large)
    chosen = set(planner.turn("snapshot", costs, MOST_LAUNCHES / 2))
    picked = [
        None if t is None or i not in chosen else flat(t) if whole else _pick(t)
        for i, t in enumerate(tensors)
    ]
    copies: list[Tensor | None] = [None] * len(tensors)
    for dtype in {one.dtype for one in picked if one is not None}:
        same = [i for i, one in enumerate(picked) if one is not None and one.dtype is dtype]
        parts = [one for i in same if (one := picked[i]) is not None]
        joined = torch.cat(parts).split([one.shape[0] for one in parts])
        for index, copy in zip(same, joined, strict=True):
            copies[index] = copy
    return Snapshot(copies, whole)


def send_updates(
    planner: Planner,
    load: Load,
    before: Snapshot,
    after: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> Callable[[Parts], tuple[NDArray[np.void], NDArray[np.int64]]]:
    """Of every tensor the record, and how many coordinates were compared."""
    held: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    for index, (old, now) in enumerate(zip(before.copies, after, strict=False)):
        if old is None or now is None or (now.dtype, now.device) != (old.dtype, old.device):
            continue
        if old.shape[0] != (now.numel() if before.whole else min(now.numel(), SAMPLE)):
            continue
        g = gradients[index]
        if g is None or g.shape != now.shape:
            pull = torch.zeros_like(old)
        else:
            pull = flat(_fitting(g, now)) if before.whole else _pick(g)
        held[index] = old, flat(now) if before.whole else _pick(now), pull
    indices = list(held)
    counts = np.zeros(len(after), np.int64)
    counts[indices] = [old.shape[0] for old, _, _ in held.values()]
    finish_sums = _summed(
        planner,
        load,
        list(held.values()),
        (0.0, 0.0, 0.0),
        WORK // 2 // 24,
        3,
        lambda _, parts: change(*parts),
    )

    total = len(after)

    def finish(arrived: Parts) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        records = np.zeros(total, UPDATE)
        if indices:
            (same, pulled, lost, moved, weight), room = finish_sums(arrived)
            records["changed"][indices] = room - same
            records["with_gradient"][indices], records["lost"][indices] = pulled, lost
            records["update_norm"][indices] = np.sqrt(moved)
            records["before_norm"][indices] = np.sqrt(weight)
        return records, counts

    return finish


def send_ratios(
    planner: Planner,
    load: Load,
    gradients: Sequence[Tensor | None],
    divisors: DeviceDivisors,
    room: int,
    launched: int,
) -> Callable[[Parts], NDArray[np.void]]:
    """As many as fit beside so many launches, in so many bytes."""
    most = room // 18
    costs = np.zeros(len(gradients))
    for index, (g, v) in enumerate(zip(gradients, divisors.seconds, strict=True)):
        if g is not None and v is not None and local(v).shape == g.shape:
            costs[index] = 24 * g.numel() * max(g.itemsize, 4) / 4 / most + 0.01
    chosen = planner.turn("ratios", costs, 60 + launched)
    held = []
    for index in chosen:
        g, v = gradients[index], divisors.seconds[index]
        assert g is not None
        assert v is not None
        held.append((flat(g), flat(_fitting(local(v), g))))
    numbers = _corrections(planner, divisors, chosen)

    def parts(owners: Tensor, slabs: Sequence[Tensor]) -> Tensor:
        g, v = (at_least_single(slab) for slab in slabs)
        correction, epsilon = numbers.index_select(1, owners).to(v.dtype).unsqueeze(2)
        return ratio(g, v, correction, epsilon)

    finish_sums = _summed(planner, load, held, (0.0, _INFINITY), most, 2, parts)
    counts = np.array([g.shape[0] for g, _ in held])

    total = len(gradients)

    def finish(arrived: Parts) -> NDArray[np.void]:
        records = np.full(total, np.nan, ADAM)
        if chosen:
            (small, finite, squares), room = finish_sums(arrived)
            with np.errstate(all="ignore"):  # gaps are finite
                records["ratio_rms"][chosen] = np.sqrt(squares / (finite - room + counts))
                records["eps_fraction"][chosen] = small / counts
        return records

    return finish


def _corrections(planner: Planner, divisors: DeviceDivisors, chosen: list[int]) -> Tensor:
    """[2, tensor]: what v is divided by, and ε."""
    device, kind = planner.device, planner.wide
    betas, epsilons = divisors.betas[chosen], divisors.epsilons[chosen]
    steps = [divisors.steps[index] for index in chosen]
    if not any(on_accelerator(step) for step in steps):
        counts = np.array([number(step) for step in steps])
        return sent_to(device, np.stack([1.0 - betas**counts, epsilons]), kind)
    numbers = sent_to(device, np.stack([betas, epsilons]), kind)
    there = [
        step.detach().reshape(1).to(device, kind, non_blocking=True)
        if isinstance(step, Tensor)
        else torch.full((1,), step, dtype=kind, device=device)
        for step in steps
    ]
    return torch.stack([1 - torch.pow(numbers[0], torch.cat(there)), numbers[1]])


def _summed(
    planner: Planner,
    load: Load,
    tensors: Sequence[tuple[Tensor, ...]],
    gaps: tuple[float, ...],
    most: int,
    counted: int,
    measure: Callable[[Tensor, Sequence[Tensor]], Tensor],
) -> Callable[[Parts], tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Sums over each of the tensors, several of one size side by side.

    `measure` gives some counts of each chunk and then norms, each with its unit: their squares
    are added up.
    """
    if not tensors:
        return lambda _: (np.zeros((0, 0)), np.zeros(0, np.int64))
    kinds = [tuple(one.dtype for one in several) for several in tensors]
    counts = [several[0].shape[0] for several in tensors]
    most = most * 4 // max(4, *(one.itemsize for kind in kinds for one in kind))
    layout = planner.kept(
        (most, tuple(counts), tuple(kinds)),
        lambda: lay_out(counts, kinds, [0] * len(counts), most, planner.device),
    )
    parts = []
    for slab in layout.slabs:
        sides = [
            slab.lay([several[side] for several in tensors], filling(gap, dtype, planner.device))
            for side, (gap, dtype) in enumerate(
                zip(gaps, kinds[slab.pieces[0].tensor], strict=True)
            )
        ]
        parts.append(measure(layout.owners[slab.first : slab.first + slab.chunks], sides))
        del sides
    numbers = with_nothing(parts, planner.wide)
    squares = (numbers[counted::2] * numbers[counted + 1 :: 2]) ** 2
    sums = layout.sums(torch.cat([numbers[:counted], squares]))
    place = load.add(sums)
    room = layout.room

    lines = len(sums)

    def finish(arrived: Parts) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return arrived[place][0].reshape(lines, -1)[:, :-1], room

    return finish
