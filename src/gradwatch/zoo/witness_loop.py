"""What a witness sees of a loop and its data: steps, rates, batches, outputs, modes, clipping."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.zoo.training import Training

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def dropouts(model: nn.Module) -> list[nn.Module]:
    """Layers that drop something when they are in training mode."""
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
    return [
        m for m in model.modules()
        if (isinstance(m, kinds) and m.p > 0) or (isinstance(m, nn.RNNBase) and m.dropout > 0)
    ]  # fmt: skip


class LoopWitness:
    """Keeps, step by step, what the definitions of the silent errors refer to."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.stepped = [0] * len(training.optimizers)
        """How often each optimizer stepped."""
        self.rates: list[list[float]] = []
        """Of each group at each step."""
        self.prints: list[int] = []
        """One number for the bits of each step's batches."""
        self.repeated: list[bool] = []
        """Whether a step's batches are, bit for bit, those of the step before."""
        self.targets: list[float] = []
        """RMS of floating targets."""
        self.soft_classes = False
        """Whether each sample's targets are the shares of classes."""
        self.outside: list[float] = []
        """Share of the targets that the last activation cannot reach."""
        self.bounds: tuple[str, float, float] | None = None
        self.spreads: list[float] = []
        """Over the samples of a batch, against the size of the outputs; the largest output's."""
        self.predicted: list[Tensor] = []
        """How often each class was predicted."""
        self.wanted: list[Tensor] = []
        """How often it was right."""
        self.modes: list[bool] = []
        """Whether any dropout layer was in training mode."""
        self.evaluations: list[bool] = []
        """Whether a forward pass without gradients ran in training mode."""
        self.factors: list[float] = []
        """By which clipping shortened the gradient."""
        self.set_anew: dict[str, list[tuple[int, float]]] = defaultdict(list)
        """Changes between two steps, against the weight, where nobody stepped."""
        self.reached: list[bool] = []
        """For each of several float inputs, whether the loss ever depended on it."""
        self._after: dict[str, Tensor] = {}
        self._batch: list[Tensor] = []
        self._output: Tensor | None = None
        self._last: tuple[str, nn.Module, Tensor] | None = None
        self.looking = False
        """Whether a pass is the witness's own."""
        self._handles: list[Any] = [training.model.register_forward_hook(self._whole)]
        for name, module in training.model.named_modules():
            if not list(module.children()):
                self._handles.append(module.register_forward_hook(self._leaf(name)))
        for index, optimizer in enumerate(training.optimizers):
            self._handles.append(optimizer.register_step_post_hook(self._count(index)))

    # -- hooks -----------------------------------------------------------------------------------

    def _count(self, index: int) -> Callable[..., None]:
        def hook(*args: object) -> None:
            self.stepped[index] += 1

        return hook

    def _leaf(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, out: object) -> None:
            if isinstance(out, Tensor):
                self._last = (name, module, out)

        return hook

    def _whole(self, module: nn.Module, args: object, out: object) -> None:
        if self.looking:
            return
        if not torch.is_grad_enabled():
            self.evaluations.append(module.training)
        elif isinstance(out, Tensor):
            self._output = out.detach()
            name, last, result = self._last or ("", module, out)
            limits = bounds_of(last)
            if result is out and limits is not None:
                self.bounds = (name, *limits)

    # -- around the update -----------------------------------------------------------------------

    def before(self, parameters: list[tuple[str, nn.Parameter]]) -> None:
        """Note batch, outputs, rates and clipping; look for weights that somebody set."""
        training = self.training
        groups = [g for optimizer in training.optimizers for g in optimizer.param_groups]
        self.rates.append([float(group["lr"]) for group in groups])
        if training.clip is not None:
            gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
            total = float(torch.stack([g.float().norm() for g in gradients]).norm())
            self.factors.append(min(1.0, training.clip / max(total, 1e-30)))
        if layers := dropouts(training.model):
            self.modes.append(any(layer.training for layer in layers))
        for name, parameter in parameters:
            if parameter.requires_grad and name in self._after:
                known, now = self._after[name], parameter.detach()
                if not torch.equal(known, now):
                    moved = float((now - known).float().norm())
                    size = max(float(known.float().norm()), 1e-30)
                    self.set_anew[name].append((len(self.rates) - 1, moved / size))
        if training.current:
            self._look_at_batch()

    def after(self, parameters: list[tuple[str, nn.Parameter]]) -> None:
        """Keep the weights as the optimizer left them."""
        self._after.update((name, p.detach().clone()) for name, p in parameters)

    def _look_at_batch(self) -> None:
        batch = [x for inputs, y in self.training.current for x in (*parts(inputs), y)]
        same = len(batch) == len(self._batch) and all(map(torch.equal, batch, self._batch))
        if self._batch:
            self.repeated.append(same)
        self._batch = [x.clone() for x in batch]
        self.prints.append(hash(tuple(x.contiguous().float().numpy().tobytes() for x in batch)))
        targets = batch[-1]
        if targets.is_floating_point():
            self.targets.append(float(targets.float().pow(2).mean().sqrt()))
            sums = targets.float().sum(-1) if targets.dim() > 1 else targets.new_zeros(1)
            self.soft_classes = torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
            if self.bounds is not None:
                _, low, high = self.bounds
                slack = 1e-3 * (1 + abs(low if high == float("inf") else high))
                out = (targets < low - slack) | (targets > high + slack)
                self.outside.append(float(out.float().mean()))
        if self._output is not None:
            self._look_at_output(self._output.float(), targets)

    def _look_at_output(self, output: Tensor, targets: Tensor) -> None:
        if len(output) > 1 and output.isfinite().all():
            columns = output.flatten(1)
            size = float(columns.pow(2).mean().sqrt())
            spread = float((columns - columns[:1]).abs().max())
            self.spreads.append(spread / size if size > 0 else 0.0)
        single = targets.is_floating_point() and output.shape == targets.shape
        if single and bool(((targets == 0) | (targets == 1)).all()):
            bounded = self.bounds is not None and self.bounds[1:] == (0.0, 1.0)
            self._count_classes((output > (0.5 if bounded else 0.0)).long(), targets.long(), 2)
        elif not targets.is_floating_point() and output.dim() == targets.dim() + 1:
            by_class = 1 if output.shape[0] == targets.shape[0] and output.dim() != 3 else -1
            classes = output.argmax(by_class)
            if classes.shape == targets.shape:
                self._count_classes(classes, targets, output.shape[by_class])

    def _count_classes(self, predicted: Tensor, wanted: Tensor, classes: int) -> None:
        valid = wanted >= 0
        self.predicted.append(torch.bincount(predicted[valid], minlength=classes))
        self.wanted.append(torch.bincount(wanted[valid], minlength=classes))

    def look_at_inputs(self, inputs: Any, targets: Tensor) -> None:
        """Ask autograd whether the loss depends on each of several inputs, for a few samples."""
        given = [x[:32].detach() for x in parts(inputs)]
        if len(given) < 2 or (self.reached and all(self.reached)):
            return
        asked = [x.requires_grad_() for x in given if x.is_floating_point()]
        self.looking = True
        with torch.enable_grad():
            loss = self.training.loss_of(
                tuple(given) if isinstance(inputs, tuple) else given[0], targets[:32]
            )
            gradients = torch.autograd.grad(loss, asked, allow_unused=True) if asked else ()
        self.looking = False
        depends = [g is not None and bool((g != 0).any()) for g in gradients]
        before = self.reached or [False] * len(depends)
        self.reached = [a or b for a, b in zip(before, depends, strict=True)]

    def quietly(self, look: Callable[[], Any]) -> Any:
        """Run what must not be taken for an evaluation of the training's own."""
        self.looking = True
        result = look()
        self.looking = False
        return result

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


def parts(inputs: Any) -> tuple[Tensor, ...]:
    """The tensors that a model is called with."""
    return inputs if isinstance(inputs, tuple) else (inputs,)


def bounds_of(module: nn.Module) -> tuple[float, float] | None:
    """What a last activation can reach, where it cannot reach everything."""
    match module:
        case nn.Sigmoid() | nn.Softmax():
            return 0.0, 1.0
        case nn.Tanh():
            return -1.0, 1.0
        case nn.Hardtanh():
            return float(module.min_val), float(module.max_val)
        case nn.ReLU() | nn.Softplus():
            return 0.0, float("inf")
    return None
