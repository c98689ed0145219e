"""The definitions of the faults, applied to what a witness saw of the tensors at every step.

Nothing here knows the recorder or the checks.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor, nn

from gradwatch.zoo.models import Attention
from gradwatch.zoo.training import Training

FLAT_TANH, FLAT_SIGMOID = 0.97, 0.03


class Witness:
    """Keeps, step by step, what the definitions of the faults refer to."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.model = training.model
        self.modules = dict(self.model.named_modules())
        self.parameters = dict(self.model.named_parameters())
        self.start = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.later: dict[str, Tensor] = {}
        """Weights after ten steps."""
        self.losses: list[float] = []
        self.validations: list[float] = []
        self.gradients: dict[str, list[float]] = defaultdict(list)
        """Norms after backward; NaN for none."""
        self.ratios: dict[str, list[float]] = defaultdict(list)
        self.norms: dict[str, list[float]] = defaultdict(list)
        """Weight norms before each update."""
        self.inputs: list[float] = []
        self.stale: list[bool] = []
        self.modes: dict[str, list[bool]] = defaultdict(list)
        self.fired: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
        self.flat: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.entropy: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.spread: dict[str, float] = {}
        """Standard deviation of each output, of layers with weights, at the first step."""
        self.bad: tuple[int, str] | None = None
        """First non-finite: step and layer."""
        self.lost: dict[str, list[float]] = defaultdict(list)
        self.feeder: dict[str, str] = {}
        self.probes: list[float] = []
        self._step = 0
        self._last_with_weights = ""
        self._before: dict[str, Tensor] = {}
        self._handles = [
            module.register_forward_hook(self._seen(name))
            for name, module in self.modules.items()
            if not list(module.children()) or isinstance(module, Attention)
        ]
        self._probe_batch = training.task.sample(256, torch.Generator().manual_seed(5))
        if training.alter is not None:
            self._probe_batch = training.alter(-1, *self._probe_batch)
        self._touched: dict[str, Tensor] = {}
        self.probe()

    # -- in the forward pass ---------------------------------------------------------------------

    def _seen(self, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, args: tuple[object, ...], out: object) -> None:
            result = out[0] if isinstance(out, tuple) else out
            if torch.is_grad_enabled() and isinstance(result, Tensor):
                self._look(name, module, args, result.detach())

        return hook

    def _look(self, name: str, module: nn.Module, args: tuple[object, ...], out: Tensor) -> None:
        given = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
        bad = out.is_floating_point() and not out.isfinite().all()
        if self.bad is None and bad and (given is None or given.isfinite().all()):
            self.bad = (self._step, name)
        if any(p.dim() >= 2 for p in module.parameters(recurse=False)):
            self._last_with_weights = name
            if self._step == 0 and name not in self.spread:
                self.spread[name] = float(out.float().std())
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            self.modes[name].append(module.training)
        if isinstance(module, nn.ReLU | nn.Tanh | nn.Sigmoid):
            self.feeder[name] = self._last_with_weights
        if isinstance(module, nn.ReLU):
            kept = [0, *range(2, out.dim())]
            alive = (out > 0).any(dim=kept) if out.dim() > 1 else out > 0
            self.fired[name].append((self._step, alive))
        elif isinstance(module, nn.Tanh):
            self.flat[name].append((self._step, float((out.abs() > FLAT_TANH).float().mean())))
        elif isinstance(module, nn.Sigmoid):
            away = (out < FLAT_SIGMOID) | (out > 1 - FLAT_SIGMOID)
            self.flat[name].append((self._step, float(away.float().mean())))
        elif isinstance(module, Attention) and module.seen is not None:
            weights = module.seen
            rows = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()
            self.entropy[name].append((self._step, float(rows) / math.log(weights.shape[-1])))

    # -- around the update -----------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Note whether gradients of the step before are still there."""
        groups = self.training.optimizer.param_groups
        gradients = [p.grad for g in groups for p in g["params"] if p.grad is not None]
        self.stale.append(any(bool((g != 0).any()) for g in gradients))

    def before_step(self, step: int, loss: Tensor, inputs: Tensor) -> None:
        """Note loss, gradients and weights before the optimizer changes them."""
        self.losses.append(float(loss))
        if inputs.is_floating_point():
            self.inputs.append(float(inputs.float().pow(2).mean().sqrt()))
        if self.bad is None and not math.isfinite(float(loss)):
            self.bad = (step, "")
        worst = ""
        for name, parameter in self.parameters.items():
            gradient = parameter.grad
            norm = math.nan if gradient is None else float(gradient.float().norm())
            self.gradients[name].append(norm)
            if gradient is not None and not math.isfinite(norm):
                worst = name.rpartition(".")[0]
            if gradient is not None and parameter.dim() >= 2:
                rows = (gradient != 0).flatten(1).any(1)
                self._touched[name] = self._touched.get(name, rows) | rows
            self._before[name] = parameter.detach().clone()
            self.norms[name].append(float(parameter.detach().float().norm()))
        if self.bad is None and worst:
            self.bad = (step, worst)

    def after_step(self, step: int, loss: Tensor, validation: float | None) -> None:
        """Compare the weights with those before the step."""
        if validation is not None:
            self.validations.append(validation)
        for name, parameter in self.parameters.items():
            before, now = self._before[name], parameter.detach()
            size = float(before.float().norm())
            moved = float((now.float() - before.float()).norm())
            self.ratios[name].append(moved / size if size > 0 else (math.inf if moved else 0.0))
            gradient = parameter.grad
            if gradient is not None and now.dtype in (torch.bfloat16, torch.float16):
                wanted = gradient != 0
                kept = ((now == before) & wanted).sum()
                self.lost[name].append(float(kept) / max(1, int(wanted.sum())))
            if self.bad is None and not math.isfinite(moved):
                self.bad = (step, name.rpartition(".")[0])
        if step == 10:
            self.later = {name: p.detach().clone() for name, p in self.parameters.items()}
        if step % 10 == 9:
            self.probe()
        self._step = step + 1

    def probe(self) -> None:
        """Loss on a fixed clean batch, in the mode the training is in."""
        with torch.no_grad():
            state = torch.get_rng_state()
            counts = {n: b.clone() for n, b in self.model.named_buffers()}
            self.probes.append(float(self.training.loss_of(*self._probe_batch)))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(counts[name])
            torch.set_rng_state(state)

    def rows_touched(self, name: str) -> Tensor | None:
        """Rows of a parameter that ever got a gradient."""
        return self._touched.get(name)

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()


@dataclass(frozen=True)
class Label:
    """One fault that a trial really has."""

    fault: str
    strong: bool
    layers: frozenset[str] = frozenset()
    """Where it is; empty when it is nowhere in particular."""
    onset: int = 0


def finite(values: Iterable[float]) -> list[float]:
    """Without NaN and infinities, in order."""
    return [value for value in values if math.isfinite(value)]


def late(values: Sequence[float]) -> float:
    """Median of the second half."""
    return median(values[len(values) // 2 :])


def layer_of(parameter: str) -> str:
    """The module that owns a parameter."""
    return parameter.rpartition(".")[0]


def weights(seen: Witness) -> list[str]:
    """Trainable tensors of two or more dimensions."""
    return [n for n, p in seen.parameters.items() if p.dim() >= 2 and p.requires_grad]


def is_embedding(seen: Witness, name: str) -> bool:
    """Whether the parameter is a table of embeddings."""
    return isinstance(seen.modules[layer_of(name)], nn.Embedding)


def end(seen: Witness) -> int:
    """Steps of the finite part."""
    return len(seen.losses) if seen.bad is None else seen.bad[0]


def _graded(fault: str, grades: Iterable[tuple[str, bool]], onset: int = 0) -> Iterator[Label]:
    """One label for layers that have a fault, strongly or weakly; the weak only count alone."""
    layers: dict[bool, set[str]] = {True: set(), False: set()}
    for layer, strong in grades:
        layers[strong].add(layer)
    strong = bool(layers[True])
    if layers[strong]:
        yield Label(fault, strong, frozenset(layers[strong]), onset)


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
    yield from _graded("exploding-gradient", grades, min(onsets, default=0))


def vanishing(seen: Witness) -> Iterator[Label]:
    """Weights whose typical gradient is below 1/10000 of the largest layer's."""
    if converged(seen):
        return
    typical = {}
    for name in weights(seen):
        norms = finite(seen.gradients[name][: end(seen)])
        if norms and median(norms) > 0 and not is_embedding(seen, name):
            typical[name] = median(norms) / seen.parameters[name].numel() ** 0.5
    if len(typical) < 2:
        return
    top = max(typical.values())
    starved = ((layer_of(n), v <= 1e-4 * top) for n, v in typical.items() if v <= 1e-2 * top)
    yield from _graded("vanishing-gradient", starved)


def spikes(seen: Witness) -> Iterator[Label]:
    """One step's gradient is 20 times the usual and back to normal soon after."""
    total = [
        math.sqrt(sum(v[i] ** 2 for v in seen.gradients.values() if math.isfinite(v[i])))
        for i in range(end(seen))
    ]
    early = median(total[:30]) if total else 0.0
    for at in range(10, len(total)):
        usual = median(total[max(0, at - 30) : at])
        after = total[at + 1 : at + 6]
        high = total[at] >= max(20 * usual, early)  # not the noise of a converged run
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
    yield from _graded("no-gradient", grades)


def not_updated(seen: Witness) -> Iterator[Label]:
    """Parameters that end as they began although they should have been trained."""
    given = {id(p) for g in seen.training.optimizer.param_groups for p in g["params"]}
    grades = []
    for name, parameter in seen.parameters.items():
        same = torch.equal(parameter.detach(), seen.start[name])
        handed = id(parameter) in given
        if not same or (not handed and not parameter.requires_grad) or len(seen.losses) < 4:
            continue
        moved = any(v > 0 for v in finite(seen.gradients[name])) and parameter.dim() >= 2
        grades.append((layer_of(name), not handed or not parameter.requires_grad or moved))
    yield from _graded("not-updated", grades)


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
        if is_embedding(seen, name):
            rows = seen.rows_touched(name)
            share = 1.0 if rows is None else 1 - float(rows.float().mean())
            silent.append((layer_of(name), share))
    yield from _graded("dead-units", ((n, share >= 0.5) for n, share in silent if share >= 0.2))


def saturated(seen: Witness) -> Iterator[Label]:
    """Tanh and sigmoid outputs at their ends, and attention that looks at one place only."""
    hidden = {name: steps for name, steps in seen.flat.items() if name != list(seen.modules)[-1]}
    grades = []
    for name, steps in hidden.items():
        if (share := _late_steps(steps, end(seen), 0.0)) >= 0.25:
            grades += [(name, share >= 0.5), (seen.feeder.get(name, name), share >= 0.5)]
    for name, steps in seen.entropy.items():
        if (entropy := _late_steps(steps, end(seen), 1.0)) <= 0.35:
            layers = (name, f"{name}.query", f"{name}.key", f"{name}.value")
            grades += [(layer, entropy <= 0.15) for layer in layers]
    yield from _graded("saturation", grades)


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
        yield from _graded("symmetric-weights", ((layer_of(name), True) for name in names))


def bad_start(seen: Witness) -> Iterator[Label]:
    """Constant weights, spreads a thousandfold apart, or a first loss far above chance."""
    task, last = seen.training.task, list(seen.modules)[-1]
    constant = {
        layer_of(n) for n in weights(seen)
        if n in seen.later and _constant(seen.start[n]) and _symmetric(seen.later[n])
    }  # fmt: skip
    spreads = [v for v in seen.spread.values() if v > 0]
    ratio = max(spreads) / min(spreads) if spreads else 1.0
    first = seen.losses[0] if seen.losses else 0.0
    flat = {seen.feeder.get(n, n) for n, v in seen.flat.items() if v[0][1] >= 0.5 and n != last}
    if constant or ratio > 1e3 or first > 10 * task.chance or flat:
        yield Label("bad-init", True, frozenset(constant | flat))
    elif ratio > 50 or first > 4 * task.chance:
        yield Label("bad-init", False)


def norms(seen: Witness) -> Iterator[Label]:
    """Collapse and explosion of weights and norm gains."""
    changes = {}
    for name, parameter in seen.parameters.items():
        module = seen.modules[layer_of(name)]
        gain = isinstance(module, nn.LayerNorm | nn.BatchNorm2d) and name.endswith("weight")
        sizes = finite(seen.norms[name][: end(seen) + 1])
        if (parameter.dim() >= 2 or gain) and sizes and sizes[0] != 0:
            changes[name] = sizes[-1] / sizes[0]
    shrunk = ((layer_of(name), v <= 0.1) for name, v in changes.items() if v <= 0.5)
    grown = ((layer_of(name), v >= 10) for name, v in changes.items() if v >= 3)
    yield from _graded("weight-collapse", shrunk)
    yield from _graded("weight-explosion", grown)


def ratios(seen: Witness) -> Iterator[Label]:
    """Updates too small to learn by, or so large that they overwrite the weights."""
    last, names = end(seen), weights(seen)
    measured = [finite(seen.ratios[n][:last]) for n in names]
    moving = [late(values) for values in measured if values and max(values) > 0]
    if moving and way(seen) < 0.5 and len(seen.losses) >= 20 and median(moving) < 1e-5:
        yield Label("update-ratio-too-small", median(moving) < 1e-6)
    after = {n: seen.ratios[n][11:last] for n in names}
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
    yield from _graded("update-ratio-too-large", grades)


# -- the loss ------------------------------------------------------------------------------------


def way(seen: Witness) -> float:
    """Share of the way from the start to the floor, by the probe or the training loss."""
    ways = []
    for values in (finite(seen.probes), finite(seen.losses)):
        gap = values[0] - seen.training.task.floor if values else 0.0
        if gap > 0:
            ways.append((values[0] - median(values[-3:])) / gap)
    return max(ways, default=1.0)


def converged(seen: Witness) -> bool:
    """Whether nine tenths of the way to the lowest possible loss are done."""
    return way(seen) > 0.9


def losses(seen: Witness) -> Iterator[Label]:
    """Divergence, spikes, oscillation and slow convergence of the loss."""
    values = finite(seen.losses[: end(seen)])
    task = seen.training.task
    if len(values) < 2:
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
    yield from _oscillation(values, task.chance, task.floor)
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


def _oscillation(values: list[float], chance: float, floor: float) -> Iterator[Label]:
    tail = values[len(values) // 2 :]
    if len(tail) < 15:
        return
    moves = [b - a for a, b in pairwise(tail)]
    flips = sum((a > 0) != (b > 0) for a, b in pairwise(moves)) / len(moves)
    level, half = median(tail), len(tail) // 2
    change = median(abs(m) for m in moves) / max(abs(level), 1e-12)
    still = median(tail[half:]) > 0.95 * median(tail[:half])
    above = level - floor > 0.4 * (chance - floor)
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
    if isinstance(module, nn.Softmax) and seen.training.loss is None:
        yield Label("output-misuse", True, frozenset({name, layer_of(weights(seen)[-1])}))
    if seen.validations and seen.losses:
        low = min(seen.validations)
        learnt = median(seen.losses[-5:]) < 0.3 * seen.losses[0]
        if median(seen.validations[-2:]) > 1.5 * low and learnt:
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
    return tuple(label for rule in ALL for label in rule(seen))
