"""The definitions of the silent errors of loop and data, sharpened where a healthy run has them.

- not-updated is only weak where no optimizer stepped, or none has the weights: that has names.
- learning-rate-zero, clipped-to-nothing: "far from the floor" is less than 80 % of the way.
- lost-initialisation: the weight changes by 30 % or more; clamping and averaging change less.
- class-imbalance: the targets are unequal too (80 %), else every network at chance has it.
- target-scale: not of rows that sum to one, which are soft classes.
- not-learning: the way begins at chance, which a constant reaches from any start.
  Slow-convergence is no other name but its milder form, and is then weak; a weak
  update-ratio-too-small is another name, since it says why. Where the level of the loss means
  nothing slow-convergence is never strong, and a fifth of the way to a good outcome is asked for.
- unused-input: of several inputs; that a network passes nothing on at all is constant-output.
- dropout-in-evaluation, eval-mode-in-training: of all dropout layers, on 90 % of the passes.
"""

from collections.abc import Iterator
from statistics import median

import torch

from gradwatch.zoo.witness import Label, Witness, end, finite, layer_of, way
from gradwatch.zoo.witness_loop import NORMS, dropouts


def far(seen: Witness) -> bool:
    """Whether a good part of the way to the floor is left."""
    return way(seen) < 0.8


def no_step(seen: Witness) -> Iterator[Label]:
    """Losses and gradients, and an optimizer that never steps."""
    stepped, name = seen.loop.stepped, "no-optimizer-step"
    if len(seen.losses) < 20 or all(stepped):
        return
    if not any(stepped):
        yield Label(name, True)
        return
    waiting = {
        layer_of(parameter)
        for index, optimizer in enumerate(seen.training.optimizers)
        if not stepped[index]
        for parameter in _owned(seen, optimizer)
        if any(v > 0 for v in finite(seen.gradients[parameter]))
    }
    if waiting:
        yield Label(name, True, frozenset(waiting))


def _owned(seen: Witness, optimizer: torch.optim.Optimizer) -> list[str]:
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [name for name, parameter in seen.parameters.items() if id(parameter) in given]


def foreign(seen: Witness) -> Iterator[Label]:
    """An optimizer over another model's parameters, or weights that no optimizer has."""
    owned = [_owned(seen, optimizer) for optimizer in seen.training.optimizers]
    given = {name for names in owned for name in names}
    left = {n for n, p in seen.parameters.items() if p.requires_grad} - given
    if not all(owned):
        yield Label("foreign-optimizer", True)
    elif left:
        yield Label("foreign-optimizer", False, frozenset(layer_of(name) for name in left))


def rate_zero(seen: Witness) -> Iterator[Label]:
    """All learning rates are nothing for a fifth of the run, which is not at its end yet."""
    rates = seen.loop.rates[: end(seen)]
    if not rates:
        return
    tops = [max(column) for column in zip(*rates, strict=True)]
    totals = [sum(row) for row in rates]
    warm = totals.index(max(totals))
    zero = [all(r <= 1e-9 * top for r, top in zip(row, tops, strict=True)) for row in rates[warm:]]
    reached = zero.index(True) + warm if any(zero) else len(rates)
    if sum(zero) >= 0.2 * len(zero) and far(seen):
        yield Label("learning-rate-zero", True, frozenset(), reached)
    elif reached < len(rates) / 2:
        yield Label("learning-rate-zero", False)


def duplicated(seen: Witness) -> Iterator[Label]:
    """Batches that come again and again, though the data has others."""
    prints, repeated = seen.loop.prints, seen.loop.repeated
    if len(set(prints)) < 2:
        return
    if sum(repeated) >= 0.5 * len(repeated):
        yield Label("duplicated-batches", True, frozenset(), repeated.index(True) + 1)
    elif prints[0] in prints[1:]:
        epoch = prints.index(prints[0], 1)
        if len(prints) >= 2 * epoch and prints[epoch:] == prints[:-epoch]:
            yield Label("duplicated-batches", False)


def constant_output(seen: Witness) -> Iterator[Label]:
    """The same output whatever the input, at the loss of the best constant."""
    spreads = seen.loop.spreads
    late = spreads[len(spreads) // 2 :]
    probes = finite(seen.probes)
    if not late or not probes or median(probes[-3:]) < 0.8 * seen.training.task.chance:
        return
    if sum(v < 1e-4 for v in late) >= 0.9 * len(late):
        yield Label("constant-output", True)


def scale_of_targets(seen: Witness) -> Iterator[Label]:
    """Regression targets far from one in size, and the loss with them."""
    sizes, losses = finite(seen.loop.targets), finite(seen.losses[: max(1, end(seen))])
    if not sizes or not losses or seen.loop.soft_classes:
        return
    size, loss = median(sizes), median(losses[:5])
    if (size > 100 and loss > 10) or (size < 0.01 and loss < 0.01):
        yield Label("target-scale", True)
    elif size > 10 or size < 0.1:
        yield Label("target-scale", False)


def output_range(seen: Witness) -> Iterator[Label]:
    """Targets that the last activation cannot reach."""
    if seen.loop.bounds is not None and seen.loop.outside and median(seen.loop.outside) >= 0.05:
        yield Label("output-range", True, frozenset({seen.loop.bounds[0]}))


def modes(seen: Witness) -> Iterator[Label]:
    """Evaluation mode in training, training mode in evaluation."""
    used = seen.loop.modes
    if used and sum(used) <= 0.1 * len(used):
        yield Label("eval-mode-in-training", True)
    norms = [m for m in seen.modules.values() if isinstance(m, NORMS)]
    if not used and norms and seen.modes and not any(map(any, seen.modes.values())):
        yield Label("eval-mode-in-training", False)
    looked = seen.loop.evaluations
    if looked and (norms or dropouts(seen.model)) and sum(looked) >= 0.9 * len(looked):
        yield Label("dropout-in-evaluation", True)


def imbalance(seen: Witness) -> Iterator[Label]:
    """Nearly everything is taken for the frequent class, and the loss has stopped."""
    quarter = max(1, len(seen.loop.predicted) // 4)
    probes = finite(seen.probes)
    if not seen.loop.predicted or len(probes) < 5:
        return
    predicted = torch.stack(seen.loop.predicted[-quarter:]).sum(0)
    wanted = torch.stack(seen.loop.wanted).sum(0)
    missed = bool(((predicted == 0) & (wanted > 0)).any())
    share = float(predicted.max() / predicted.sum())
    last = max(2, len(probes) // 4)
    gap = max(probes[0] - seen.training.task.floor, 1e-12)
    gain = (median(probes[-2 * last : -last]) - median(probes[-last:])) / gap
    unequal = float(wanted.max() / wanted.sum()) >= 0.8 and int((wanted > 0).sum()) > 1
    if unequal and missed and share >= 0.8 and gain < 0.02:
        yield Label("class-imbalance", share >= 0.95 and gain < 0.01)


def set_anew(seen: Witness) -> Iterator[Label]:
    """A weight becomes another between two steps."""
    changes = {
        name: [step for step, size in events if size >= 0.3]
        for name, events in seen.loop.set_anew.items()
    }
    found = {name: steps[0] for name, steps in changes.items() if steps and steps[0] < end(seen)}
    if found:
        layers = frozenset(layer_of(name) for name in found)
        yield Label("lost-initialisation", True, layers, min(found.values()))


def unused_input(seen: Witness) -> Iterator[Label]:
    """A float input that the loss does not depend on."""
    if any(seen.loop.reached) and not all(seen.loop.reached):
        yield Label("unused-input", True)


def clipped(seen: Witness) -> Iterator[Label]:
    """Clipping that leaves a thousandth, with an optimizer that does not make up for it."""
    factors = finite(seen.loop.factors)
    plain = all(isinstance(o, torch.optim.SGD) for o in seen.training.optimizers)
    if factors and plain and far(seen) and median(factors) < 1e-2:
        yield Label("clipped-to-nothing", median(factors) < 1e-3)


SILENT = (
    no_step, foreign, rate_zero, duplicated, constant_output, scale_of_targets, output_range, modes,
    imbalance, set_anew, unused_input, clipped,
)  # fmt: skip


def _below_chance(seen: Witness) -> bool:
    """Whether more was learnt than a constant: 5 % of the way from chance to the floor."""
    probes, task = finite(seen.probes), seen.training.task
    share = 0.05 if seen.training.level else 0.2
    start = min(probes[0], task.chance) if probes else 0.0
    return not probes or median(probes[-3:]) < start - share * (start - task.floor)


def not_learning(seen: Witness, found: list[Label]) -> list[Label]:
    """The labels, with the name for a training that stands still and has no other."""
    strong = {label.fault for label in found if label.strong}
    slow = Label("update-ratio-too-small", False) in found
    if len(seen.losses) < 40 or slow or strong - {"slow-convergence"} or _below_chance(seen):
        return found
    rest = [label for label in found if label.fault != "slow-convergence"]
    return [*rest, Label("slow-convergence", False), Label("not-learning", True)]
