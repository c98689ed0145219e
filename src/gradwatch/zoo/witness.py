"""Looks at the tensors of a training at every step, and takes nothing from recorder or checks."""

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradwatch.zoo.models import Attention
from gradwatch.zoo.training import Training

FLAT_TANH, FLAT_SIGMOID = 0.97, 0.03


class Witness:
    """Keeps, step by step, what the definitions of the faults speak of."""

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
        groups = self.training.optimizer.param_groups
        gradients = [p.grad for g in groups for p in g["params"] if p.grad is not None]
        self.stale.append(any(bool((g != 0).any()) for g in gradients))

    def before_step(self, step: int, loss: Tensor, inputs: Tensor) -> None:
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
        for handle in self._handles:
            handle.remove()
