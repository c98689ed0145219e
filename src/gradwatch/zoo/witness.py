"""What a witness sees of a training's tensors at every step; knows no recorder and no check."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from gradwatch.zoo.models import Attention
from gradwatch.zoo.training import Training, Turn
from gradwatch.zoo.witness_loop import LoopWitness, parts

FLAT_TANH, FLAT_SIGMOID = 0.97, 0.03


class Witness:
    """Keeps, step by step, what the definitions of the faults refer to."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.loop = LoopWitness(training)
        self.model = training.model
        self.modules = dict(self.model.named_modules())
        self.parameters = dict(self.model.named_parameters())
        self.start = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.later: dict[str, Tensor] = {}
        """Weights after ten steps."""
        self.losses: list[float] = []
        """Of each step; the sum where a step has several."""
        self.by_turn: dict[str, list[float]] = defaultdict(list)
        self.numbers: dict[str, list[float]] = defaultdict(list)
        """What was logged besides, under its names."""
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
        self.asked: dict[str, list[Tensor]] = {}
        """Rows of an embedding that were asked for; one entry where always the same (positions)."""
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
        self.owner = {
            id(p): turn.name
            for turn in training.turns
            for optimizer in turn.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        """The turn in which each parameter is moved."""
        self.probe()

    # -- in the forward pass ---------------------------------------------------------------------

    def _seen(self, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, args: tuple[object, ...], out: object) -> None:
            result = out[0] if isinstance(out, tuple) else out
            if torch.is_grad_enabled() and isinstance(result, Tensor) and not self.loop.looking:
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
                self.spread[name] = float(out.float().std(correction=0))
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            self.modes[name].append(module.training)
        if isinstance(module, nn.Embedding) and isinstance(args[0], Tensor):
            row = args[0].flatten(0, -2)[0] if args[0].dim() > 1 else args[0]
            asked = self.asked.setdefault(name, [row.clone()])
            size = min(len(row), len(asked[0]))
            if len(asked) < 2 and not torch.equal(row[:size], asked[0][:size]):
                asked.append(row.clone())
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

    def begin_step(self, step: int, turn: Turn) -> None:
        """Note whether gradients of the step before are still there."""
        groups = [group for optimizer in turn.optimizers for group in optimizer.param_groups]
        gradients = [p.grad for g in groups for p in g["params"] if p.grad is not None]
        self.stale.append(any(bool((g != 0).any()) for g in gradients))

    def _moved_in(self, turn: Turn) -> list[tuple[str, nn.Parameter]]:
        """Parameters that this turn is about; what no optimizer has belongs to the first."""
        turns = self.training.turns
        if len(turns) < 2:
            return list(self.parameters.items())
        first = turns[0].name
        named = self.parameters.items()
        return [(n, p) for n, p in named if self.owner.get(id(p), first) == turn.name]

    def before_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """Note loss, gradients and weights before the optimizer changes them."""
        self.by_turn[turn.name].append(float(loss))
        if len(self.losses) == step:
            self.losses.append(float(loss))
        else:
            self.losses[step] += float(loss)
        for inputs, _ in self.training.current[-1:]:
            read = [x for x in parts(inputs) if x.is_floating_point()]
            if read:
                self.inputs.append(max(float(x.float().pow(2).mean().sqrt()) for x in read))
        if self.bad is None and not math.isfinite(float(loss)):
            self.bad = (step, "")
        worst = ""
        concerned = self._moved_in(turn)
        self.loop.before(concerned)
        for name, parameter in concerned:
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

    def after_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """Compare the weights with those before the step."""
        concerned = self._moved_in(turn)
        self.loop.after(concerned)
        for name, parameter in concerned:
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

    def end_step(self, step: int, validation: float | None, numbers: Mapping[str, float]) -> None:
        """Note what was logged; every ten steps, look how far the training is."""
        if validation is not None:
            self.validations.append(validation)
        for name, value in numbers.items():
            self.numbers[name].append(value)
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
            outcome = self.training.outcome or self._clean_loss
            self.probes.append(float(self.loop.quietly(outcome)))
            if self.training.outcome is None:
                self.loop.look_at_inputs(*self._probe_batch)
            for name, buffer in self.model.named_buffers():
                buffer.copy_(counts[name])
            torch.set_rng_state(state)

    def _clean_loss(self) -> Tensor:
        return self.training.loss_of(*self._probe_batch)

    def rows_touched(self, name: str) -> Tensor | None:
        """Rows of a parameter that ever got a gradient."""
        return self._touched.get(name)

    def close(self) -> None:
        """Take the hooks off the model."""
        self.loop.close()
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


def way(seen: Witness) -> float:
    """Share of the way from the start to the floor, by the probe or the training loss."""
    ways = []
    alone = seen.training.level and seen.training.outcome is None
    for values in (finite(seen.probes), finite(seen.losses) if alone else []):
        gap = values[0] - seen.training.task.floor if values else 0.0
        if gap > 0:
            ways.append((values[0] - median(values[-3:])) / gap)
    return max(ways, default=1.0)


def converged(seen: Witness) -> bool:
    """Whether nine tenths of the way to the lowest possible loss are done."""
    return way(seen) > 0.9


def graded(fault: str, grades: Iterable[tuple[str, bool]], onset: int = 0) -> Iterator[Label]:
    """One label for layers that have a fault, strongly or weakly; the weak only count alone."""
    layers: dict[bool, set[str]] = {True: set(), False: set()}
    for layer, strong in grades:
        layers[strong].add(layer)
    strong = bool(layers[True])
    if layers[strong]:
        yield Label(fault, strong, frozenset(layers[strong]), onset)
