"""The definitions of the faults, applied to what a witness saw of the tensors at every step.

Nothing here knows the recorder or the checks. Sharpened where a healthy run would have the fault:

- gradient-spikes: not the noise of a converged run (see `spikes`).
- saturation: attention that looks at one place is no fault of a run that has converged.
- dead-units: not tables that are asked for the same rows on every step (positions, token types).
- weight-explosion: the weight also ends twice as large as one usually begins.
- update-ratio-too-large: not while a weight that began near zero is still small.
- loss-oscillation: weak where the loss on a clean batch stands still: then batches differ so.
- overfitting: the validation loss also rises by a tenth of chance.
- not-updated: weak where no optimizer stepped or none has the model's weights.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import torch
from torch import nn
from torch.nn import functional

from gradwatch.zoo.criteria_outcome import OUTCOME
from gradwatch.zoo.criteria_silent import SILENT, not_learning
from gradwatch.zoo.witness import (
    Label,
    Witness,
    converged,
    end,
    finite,
    graded,
    is_embedding,
    late,
    layer_of,
    way,
    weights,
)  # fmt: skip


def nonfinite(seen: Witness) -> Iterator[Label]:
    """A loss, gradient or weight became NaN or infinite; where it was first seen."""
    if seen.bad is not None:
        step, layer = seen.bad
        yield Label("nonfinite", True, frozenset({layer} if layer else ()), step)


def exploding(seen: Witness) -> Iterator[Label]:
    """Norms above 1000 on three steps, above a million once, or grown a thousandfold."""
    grades, onsets = [], []
    for name, values in seen.gradients.items():
        norms = finite(values[: end(seen)])
        if not norms:
            continue
        fifth = max(5, len(norms) // 5)
        early, last = median(norms[:fifth]), median(norms[-fifth:])
        grown = last / early if early > 0 else 0.0
        if sum(v > 1e3 for v in norms) >= 3 or max(norms) > 1e6 or (grown >= 1e3 and last > 10):
            grades.append((layer_of(name), True))
            onsets.append(next((i for i, v in enumerate(values) if v > 1e3), len(seen.losses)))
        elif sum(v > 100 for v in norms) >= 3 or (grown >= 50 and last > 5):
            grades.append((layer_of(name), False))
    yield from graded("exploding-gradient", grades, min(onsets, default=0))


def vanishing(seen: Witness) -> Iterator[Label]:
    """Weights whose typical gradient is below 1/10000 of the largest that the same loss moves."""
    if converged(seen):
        return
    typical = {}
    for name in weights(seen):
        norms = finite(seen.gradients[name][: end(seen)])
        if norms and median(norms) > 0 and not is_embedding(seen, name):
            typical[name] = median(norms) / seen.parameters[name].numel() ** 0.5
    tops: dict[str, float] = {}
    turns = {name: seen.owner.get(id(seen.parameters[name]), "") for name in typical}
    for name, value in typical.items():
        tops[turns[name]] = max(value, tops.get(turns[name], 0.0))
    shares = {name: value / tops[turns[name]] for name, value in typical.items()}
    starved = ((layer_of(n), share <= 1e-4) for n, share in shares.items() if share <= 1e-2)
    yield from graded("vanishing-gradient", starved)


def spikes(seen: Witness) -> Iterator[Label]:
    """One step's gradient is 20 times the usual and back to normal soon after."""
    floor, first = seen.training.task.floor, seen.losses[0] if seen.losses else 0.0
    near = floor + 0.1 * (first - floor)
    total = [
        math.sqrt(sum(v[i] ** 2 for v in seen.gradients.values() if math.isfinite(v[i])))
        for i in range(end(seen))
    ]
    early = median(total[:30]) if total else 0.0
    for at in range(10, len(total)):
        usual = median(total[max(0, at - 30) : at])
        after = total[at + 1 : at + 6]
        settled = median(seen.losses[max(0, at - 30) : at]) <= near
        matters = not settled or seen.losses[at] > 0.5 * seen.training.task.chance
        high = matters and total[at] >= max(20 * usual, early)
        if usual > 0 and high and after and min(after) < 3 * usual:
            yield Label("gradient-spikes", True, frozenset(), at)
            return


def no_gradient(seen: Witness) -> Iterator[Label]:
    """Trainable parameters with no gradient, or only zeros, on 95 % of the steps."""
    grades = []
    for name, parameter in seen.parameters.items():
        values = seen.gradients[name][: max(end(seen), 1)]
        empty = sum(math.isnan(v) or v == 0 for v in values) / max(1, len(values))
        if parameter.requires_grad and empty >= 0.95 and len(values) > 4:
            grades.append((layer_of(name), parameter.dim() >= 2))
    yield from graded("no-gradient", grades)


def not_updated(seen: Witness) -> Iterator[Label]:
    """Parameters that end as they began although they should have been trained."""
    groups = [g for optimizer in seen.training.optimizers for g in optimizer.param_groups]
    given = {id(p) for group in groups for p in group["params"]}
    nobody = not any(seen.loop.stepped) or not given & set(map(id, seen.parameters.values()))
    grades = []
    for name, parameter in seen.parameters.items():
        same = torch.equal(parameter.detach(), seen.start[name])
        handed = id(parameter) in given
        if not same or (not handed and not parameter.requires_grad) or len(seen.losses) < 4:
            continue
        moved = any(v > 0 for v in finite(seen.gradients[name])) and parameter.dim() >= 2
        strong = not handed or not parameter.requires_grad or moved
        grades.append((layer_of(name), strong and not nobody))
    yield from graded("not-updated", grades)


def dead(seen: Witness) -> Iterator[Label]:
    """ReLU units that never fire late in the run, and embedding rows that are never used."""
    silent: list[tuple[str, float]] = []
    for name, steps in seen.fired.items():
        alive = [units for step, units in steps if step < end(seen)]
        if alive and end(seen) >= 20:
            fired = torch.stack(alive[-max(1, len(alive) // 4) :]).any(0)
            share = 1 - float(fired.float().mean())
            silent += [(name, share), (seen.feeder.get(name, name), share)]
    for name in weights(seen):
        if is_embedding(seen, name) and len(seen.asked.get(layer_of(name), ())) > 1:
            rows = seen.rows_touched(name)
            share = 1.0 if rows is None else 1 - float(rows.float().mean())
            silent.append((layer_of(name), share))
    yield from graded("dead-units", ((n, share >= 0.5) for n, share in silent if share >= 0.2))


def saturated(seen: Witness) -> Iterator[Label]:
    """Tanh and sigmoid outputs at their ends, and attention that looks at one place only."""
    hidden = {name: steps for name, steps in seen.flat.items() if name != list(seen.modules)[-1]}
    grades = []
    for name, steps in hidden.items():
        if (share := _late_steps(steps, end(seen), 0.0)) >= 0.25:
            grades += [(name, share >= 0.5), (seen.feeder.get(name, name), share >= 0.5)]
    for name, steps in [] if converged(seen) else seen.entropy.items():
        if (entropy := _late_steps(steps, end(seen), 1.0)) <= 0.35:
            layers = (name, f"{name}.query", f"{name}.key", f"{name}.value")
            grades += [(layer, entropy <= 0.15) for layer in layers]
    yield from graded("saturation", grades)


def _late_steps(steps: list[tuple[int, float]], last: int, default: float) -> float:
    values = finite(value for step, value in steps if step < last)
    return late(values) if values else default


def _symmetric(weight: torch.Tensor) -> bool:
    if weight.dim() < 2 or weight.shape[0] < 2:
        return False
    rows = weight.float().flatten(1)
    size = float(rows.norm(dim=1).max())
    return float((rows - rows[0]).norm(dim=1).max()) <= 1e-4 * max(size, 1e-30)


def _constant(weight: torch.Tensor) -> bool:
    return bool((weight == weight.flatten()[0]).all())


def symmetric(seen: Witness) -> Iterator[Label]:
    """Weights whose rows are all alike, at the start and still at the end."""
    names = [
        n for n in weights(seen)
        if _symmetric(seen.start[n]) and _symmetric(seen.parameters[n].detach())
    ]  # fmt: skip
    if len(seen.losses) > 10:
        yield from graded("symmetric-weights", ((layer_of(name), True) for name in names))


def bad_start(seen: Witness) -> Iterator[Label]:
    """Constant weights, spreads a thousandfold apart, or a first loss far above chance."""
    task, last = seen.training.task, list(seen.modules)[-1]
    constant = {
        layer_of(n) for n in weights(seen)
        if n in seen.later and _constant(seen.start[n]) and _symmetric(seen.later[n])
    }  # fmt: skip
    spreads = [v for v in seen.spread.values() if v > 0]
    ratio = max(spreads) / min(spreads) if spreads else 1.0
    first = seen.losses[0] if seen.losses and seen.training.level else 0.0
    flat = {seen.feeder.get(n, n) for n, v in seen.flat.items() if v[0][1] >= 0.5 and n != last}
    if constant or ratio > 1e3 or first > 10 * task.chance or flat:
        yield Label("bad-init", True, frozenset(constant | flat))
    elif ratio > 50 or first > 4 * task.chance:
        yield Label("bad-init", False)


def norms(seen: Witness) -> Iterator[Label]:
    """Collapse and explosion of weights and norm gains."""
    changes, last = {}, {}
    for name, parameter in seen.parameters.items():
        module = seen.modules[layer_of(name)]
        gain = isinstance(module, nn.LayerNorm | nn.BatchNorm2d) and name.endswith("weight")
        sizes = finite(seen.norms[name][: end(seen) + 1])
        if (parameter.dim() >= 2 or gain) and sizes and sizes[0] != 0:
            changes[name] = sizes[-1] / sizes[0]
            last[name] = ordinary(seen, name, sizes[-1]) if parameter.dim() >= 2 else math.inf
    shrunk = ((layer_of(name), v <= 0.1) for name, v in changes.items() if v <= 0.5)
    grown = ((layer_of(n), v >= 10 and last[n] >= 2) for n, v in changes.items() if v >= 3)
    yield from graded("weight-collapse", shrunk)
    yield from graded("weight-explosion", grown)


def ordinary(seen: Witness, name: str, norm: float) -> float:
    """A norm of a weight against the one that keeps the scale of what passes through it."""
    shape = seen.parameters[name].shape
    inputs = 1 if is_embedding(seen, name) else math.prod(shape[1:])
    return norm / math.sqrt(math.prod(shape) / max(1, inputs))


def _of_grown(seen: Witness, name: str) -> list[float]:
    """Update ratios; 0 while a weight that began near zero is below a tenth of what it becomes."""
    sizes = seen.norms[name]
    if not sizes or ordinary(seen, name, sizes[0]) >= 0.1:
        return seen.ratios[name]
    top = max(finite(sizes), default=0.0)
    return [
        r if size >= 0.1 * top else 0.0 for r, size in zip(seen.ratios[name], sizes, strict=False)
    ]


def ratios(seen: Witness) -> Iterator[Label]:
    """Updates too small to learn by, or so large that they overwrite the weights."""
    last, names = end(seen), weights(seen)
    measured = [finite(seen.ratios[n][:last]) for n in names]
    moving = [late(values) for values in measured if values and max(values) > 0]
    if moving and way(seen) < 0.5 and len(seen.losses) >= 20 and median(moving) < 1e-5:
        yield Label("update-ratio-too-small", median(moving) < 1e-6)
    after = {n: _of_grown(seen, n)[11:last] for n in names}
    grades = []
    for name, values in after.items():
        often = 0.1 * len(values)
        if values and sum(v > 0.1 for v in values) >= often:
            grades.append((layer_of(name), sum(v > 0.3 for v in values) >= often))
    for at in range(max((len(v) for v in after.values()), default=0)):
        over = [n for n, v in after.items() if at < len(v) and v[at] > 1]
        if len(over) >= len(names) / 4:
            grades += [(layer_of(name), True) for name in over]
            break
    yield from graded("update-ratio-too-large", grades)


# -- the loss ------------------------------------------------------------------------------------


def losses(seen: Witness) -> Iterator[Label]:
    """Divergence, spikes, oscillation and slow convergence of the loss."""
    values = finite(seen.losses[: end(seen)])
    task = seen.training.task
    if not seen.training.level:
        yield from (Label(slow.fault, False) for slow in _slow(seen, len(values)))
    if not seen.training.level or len(values) < 2:
        return
    first, final = min(values[0], median(values[:3])), median(values[-5:])
    top = max(first, task.chance)
    grown = seen.bad is not None and max(values[-3:]) > 10 * top
    unbounded = first < 0 and final < 20 * min(first, -1.0)
    if final > 2 * top or unbounded or grown:
        onset = next((i for i, v in enumerate(values) if abs(v) > 2 * abs(top)), len(values) - 1)
        yield Label("divergence", True, frozenset(), onset)
    elif final > 1.3 * top or max(values) > 2 * top:
        yield Label("divergence", False)
    yield from _spike(values, task.chance)
    yield from _oscillation(values, task.chance, task.floor, finite(seen.probes))
    yield from _slow(seen, len(values))


def _spike(values: list[float], chance: float) -> Iterator[Label]:
    mild = False
    for at in range(10, len(values)):
        before = values[max(0, at - 60) : at]
        middle = median(before)
        spread = median(abs(v - middle) for v in before)
        high = values[at] > middle + 15 * spread and values[at] > 3 * middle
        back = values[at + 1 : at + 16]
        if not high or not back or min(back) > middle + 0.3 * (values[at] - middle):
            continue
        if values[at] > 2.5 * max(before) and values[at] > 1.2 * chance:
            yield Label("loss-spike", True, frozenset(), at)
            return
        mild |= values[at] > 0.5 * chance
    if mild:
        yield Label("loss-spike", False)


def _oscillation(
    values: list[float], chance: float, floor: float, probes: list[float]
) -> Iterator[Label]:
    tail = values[len(values) // 2 :]
    if len(tail) < 15:
        return
    moves = [b - a for a, b in pairwise(tail)]
    flips = sum((a > 0) != (b > 0) for a, b in pairwise(moves)) / len(moves)
    level, half = median(tail), len(tail) // 2
    change = median(abs(m) for m in moves) / max(abs(level), 1e-12)
    still = median(tail[half:]) > 0.95 * median(tail[:half])
    above = level - floor > 0.4 * (chance - floor)
    clean = probes[len(probes) // 2 :]
    swings = [abs(b - a) / max(abs(a), 1e-12) for a, b in pairwise(clean)]
    above = above and median(swings or [0.0]) > 0.05
    if flips > 0.4 and change > 0.2 and still and above:
        yield Label("loss-oscillation", True)
    elif flips > 0.3 and change > 0.08 and still and level - floor > 0.2 * (chance - floor):
        yield Label("loss-oscillation", False)


def _slow(seen: Witness, steps: int) -> Iterator[Label]:
    probes = finite(seen.probes)
    gap = probes[0] - seen.training.task.floor if probes else 0.0
    if steps < 40 or gap <= 0 or len(probes) < 5 or converged(seen):
        return
    done, quarter = way(seen), max(2, len(probes) // 4)
    left = 1 - done
    gain = (median(probes[-2 * quarter : -quarter]) - median(probes[-quarter:])) / gap
    if done < 0.2 or (gain < 0.01 and left > 0.3):
        yield Label("slow-convergence", True)
    elif done < 0.5 or (gain < 0.02 and left > 0.15):
        yield Label("slow-convergence", False)


# -- the loop ------------------------------------------------------------------------------------


def loop(seen: Witness) -> Iterator[Label]:
    """Faults of the training loop: stale gradients, inputs, modes, outputs, precision."""
    if len(seen.stale) > 3 and sum(seen.stale) >= 0.9 * len(seen.stale):
        yield Label("stale-gradients", True)
    inputs = finite(seen.inputs)
    if inputs and median(inputs) > 100:
        yield Label("input-scale", True, frozenset({next(iter(seen.spread), "")}))
    elif inputs and max(inputs) > 10 * median(inputs):
        yield Label("input-scale", False)
    resting = {
        n for n, modes in seen.modes.items()
        if sum(modes) <= 0.1 * len(modes) and seen.parameters[f"{n}.weight"].requires_grad
    }  # fmt: skip
    if resting:
        yield Label("norm-misuse", True, frozenset(resting))
    name, module = list(seen.modules.items())[-1]
    logits_wanted = functional.binary_cross_entropy_with_logits
    sure = isinstance(module, nn.Sigmoid) and seen.training.task.loss is logits_wanted
    if (sure or isinstance(module, nn.Softmax)) and seen.training.loss is None:
        yield Label("output-misuse", True, frozenset({name, layer_of(weights(seen)[-1])}))
    if seen.validations and seen.losses:
        low = min(seen.validations)
        learnt = median(seen.losses[-5:]) < 0.3 * seen.losses[0]
        now = median(seen.validations[-2:])
        if now > max(1.5 * low, low + 0.1 * seen.training.task.chance) and learnt:
            yield Label("overfitting", True)
    lost = [late(values) for values in seen.lost.values() if values]
    if lost and median(lost) > 0.5:
        yield Label("update-lost-to-rounding", way(seen) < 0.5)


ALL = (
    nonfinite, exploding, vanishing, spikes, no_gradient, not_updated, dead, saturated,
    symmetric, bad_start, norms, ratios, losses, loop,
)  # fmt: skip


def labels(seen: Witness) -> tuple[Label, ...]:
    """Everything that is true of this trial, strong or weak."""
    return tuple(
        not_learning(seen, [label for rule in (*ALL, *SILENT, *OUTCOME) for label in rule(seen)])
    )
