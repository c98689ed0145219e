"""What a family may change in a recipe's training: small pieces that can be put together.

A piece is made with its numbers and called with the training and the trial's draw. Layers and
parameters are chosen by name, with `*` and `?`. The optimizer is made when all changes are done,
so that a layer replaced by one piece is given to the optimizer that another chooses.
"""

import copy
import fnmatch
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.zoo.tasks import Task
from gradwatch.zoo.training import Alter, Change, Draw, Training


def modules(training: Training, pattern: str) -> list[tuple[str, nn.Module]]:
    """Layers whose name fits; an error where none does, since the family would be another."""
    found = [(n, m) for n, m in training.model.named_modules() if fnmatch.fnmatch(n, pattern)]
    if not found:
        raise LookupError(f"no layer is called {pattern!r}")
    return found


def parameters(training: Training, pattern: str) -> list[nn.Parameter]:
    """Parameters whose name, or whose layer's name, fits."""
    found = [
        p for name, p in training.model.named_parameters()
        if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name.rpartition(".")[0], pattern)
    ]  # fmt: skip
    if not found:
        raise LookupError(f"no parameter is called {pattern!r}")
    return found


def set_field(**fields: Any) -> Change:
    """Fields of the training that need no arithmetic: clip, batch, accumulate, train_mode …"""

    def change(training: Training, draw: Draw) -> None:
        for name, value in fields.items():
            if not hasattr(training, name):
                raise AttributeError(name)
            setattr(training, name, value)

    return change


# -- the optimizer -------------------------------------------------------------------------------


def tuned(tune: Callable[[Optimizer, Draw], None]) -> Change:
    """Do something to each optimizer once it is made."""

    def change(training: Training, draw: Draw) -> None:
        build = training.build
        if build is None:
            for optimizer in training.optimizers:
                tune(optimizer, draw)
            return

        def built(model: nn.Module) -> Optimizer:
            optimizer = build(model)
            tune(optimizer, draw)
            return optimizer

        training.build = built

    return change


def each_group(**values: Any) -> Change:
    """Set values in every parameter group: weight_decay, eps, momentum."""

    def tune(optimizer: Optimizer, draw: Draw) -> None:
        for group in optimizer.param_groups:
            group.update({name: v(draw) if callable(v) else v for name, v in values.items()})

    return tuned(tune)


def rate_times(low: float, high: float | None = None) -> Change:
    """Multiply the learning rate by a number drawn between two, uniform in the logarithm."""

    def tune(optimizer: Optimizer, draw: Draw) -> None:
        factor = draw.rate(low, low if high is None else high)
        for group in optimizer.param_groups:
            group["lr"] *= factor

    return tuned(tune)


def optimizer(kind: Callable[..., Optimizer], **options: Any) -> Change:
    """Another optimizer over everything that is trainable."""

    def change(training: Training, draw: Draw) -> None:
        training.build = lambda model: kind([p for p in model.parameters() if p.requires_grad],
                                            **options)  # fmt: skip

    return change


def optimizer_over_all(kind: Callable[..., Optimizer], **options: Any) -> Change:
    """An optimizer that is also given what was frozen."""

    def change(training: Training, draw: Draw) -> None:
        training.build = lambda model: kind(model.parameters(), **options)

    return change


def weight_decay(value: float) -> Change:
    """Decay of all weights, norms and biases among them."""
    return each_group(weight_decay=value)


def leave_out(*patterns: str) -> Change:
    """Parameters that no optimizer gets."""

    def change(training: Training, draw: Draw) -> None:
        def tune(optimizer: Optimizer, draw: Draw) -> None:
            left = {id(p) for pattern in patterns for p in parameters(training, pattern)}
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in left]
            optimizer.param_groups[:] = [g for g in optimizer.param_groups if g["params"]]

        tuned(tune)(training, draw)

    return change


def rate_of(pattern: str, factor: float) -> Change:
    """A group of its own for some parameters, with `factor` times the learning rate."""

    def change(training: Training, draw: Draw) -> None:
        build = training.build
        assert build is not None, "only recipes with one optimizer"

        def built(model: nn.Module) -> Optimizer:
            apart = parameters(training, pattern)
            made = build(model)
            first = made.param_groups[0]
            for group in made.param_groups:
                group["params"] = [p for p in group["params"] if all(p is not a for a in apart)]
            made.param_groups[:] = [group for group in made.param_groups if group["params"]]
            made.add_param_group({**first, "params": apart, "lr": factor * first["lr"]})
            return made

        training.build = built

    return change


def foreign() -> Change:
    """The optimizer is made over a copy of the model, as if it had been built twice."""

    def change(training: Training, draw: Draw) -> None:
        build = training.build
        assert build is not None, "only recipes with one optimizer"
        training.build = lambda model: build(copy.deepcopy(model))

    return change


def second_optimizer(*patterns: str, silent: bool) -> Change:
    """Some layers have an optimizer of their own, which steps with the first or never does."""

    def change(training: Training, draw: Draw) -> None:
        leave_out(*patterns)(training, draw)
        own = [p for pattern in patterns for p in parameters(training, pattern)]
        training.also = (torch.optim.Adam(own, 2e-3),)
        training.silent = frozenset({1} if silent else ())

    return change


def no_step() -> Change:
    """Nobody calls `optimizer.step()`."""
    return set_field(silent=frozenset(range(9)))


# -- the model -----------------------------------------------------------------------------------


def initialise(pattern: str, fill: Callable[[Tensor], object]) -> Change:
    """Fill parameters anew, with functions such as those of torch.nn.init."""

    def change(training: Training, draw: Draw) -> None:
        with torch.no_grad():
            for parameter in parameters(training, pattern):
                fill(parameter)

    return change


def scale_weights(pattern: str, low: float, high: float | None = None) -> Change:
    """Multiply parameters by a drawn number."""

    def change(training: Training, draw: Draw) -> None:
        factor = draw.rate(low, low if high is None else high)
        initialise(pattern, lambda tensor: tensor.mul_(factor))(training, draw)

    return change


def rows(pattern: str, share: float, value: float) -> Change:
    """Set a share of a parameter's rows to one value."""

    def fill(tensor: Tensor) -> None:
        tensor[: int(share * len(tensor))] = value

    return initialise(pattern, fill)


def freeze(*patterns: str) -> Change:
    """`requires_grad_(False)`; whether the optimizer still gets them is the recipe's affair."""

    def change(training: Training, draw: Draw) -> None:
        for pattern in patterns:
            for parameter in parameters(training, pattern):
                parameter.requires_grad_(False)

    return change


def replace_module(pattern: str, make: Callable[[nn.Module], nn.Module]) -> Change:
    """Put another module, made from the old one, in each place."""

    def change(training: Training, draw: Draw) -> None:
        for name, module in modules(training, pattern):
            if not name:
                training.model = make(module)
                continue
            above, _, last = name.rpartition(".")
            parent = training.model.get_submodule(above)
            if isinstance(parent, nn.Sequential | nn.ModuleList):
                parent[int(last)] = make(module)
            else:
                setattr(parent, last, make(module))

    return change


def follow(pattern: str, make: Callable[[], nn.Module]) -> Change:
    """Insert a module behind each place."""
    return replace_module(pattern, lambda module: nn.Sequential(module, make()))


def dropout(share: float) -> Change:
    """The same rate for every dropout layer."""

    def change(training: Training, draw: Draw) -> None:
        layers = [m for m in training.model.modules() if isinstance(m, nn.Dropout)]
        if not layers:
            raise LookupError("no dropout layer")
        for layer in layers:
            layer.p = share

    return change


class Cut(nn.Module):
    """Passes values and no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """The input, detached."""
        return x.detach()


def overwrite(pattern: str, at: float, fill: Callable[[Tensor], object]) -> Change:
    """Parameters are filled anew when a share of the run is over, as by a late `init`."""

    def change(training: Training, draw: Draw) -> None:
        step_of_it = max(1, int(at * training.steps))

        def after(step: int) -> None:
            if step == step_of_it:
                initialise(pattern, fill)(training, draw)

        training.after = after

    return change


# -- the data ------------------------------------------------------------------------------------


def altered(alter: Alter) -> Change:
    """Change every batch, after whatever the recipe itself does."""

    def change(training: Training, draw: Draw) -> None:
        before = training.alter

        def both(step: int, x: Any, y: Any) -> tuple[Any, Any]:
            return alter(step, *(before(step, x, y) if before is not None else (x, y)))

        training.alter = both

    return change


def inputs(function: Callable[[Any], Any]) -> Change:
    """Change the inputs of every batch."""
    return altered(lambda step, x, y: (function(x), y))


def targets(function: Callable[[Any], Any]) -> Change:
    """Change the targets of every batch, those of the clean batch too."""
    return altered(lambda step, x, y: (x, function(y)))


def label_noise(share: float) -> Change:
    """Targets of that share of the samples are swapped; the clean batch stays clean."""

    def alter(step: int, x: Any, y: Tensor) -> tuple[Any, Tensor]:
        if step < 0:
            return x, y
        count = int(share * len(y))
        shuffled = y.clone()
        shuffled[:count] = y[:count].roll(1, 0)
        return x, shuffled

    return altered(alter)


def new_task(task: Task) -> Change:
    """Other data for the same model."""
    return set_field(task=task)


def targets_times(factor: float) -> Change:
    """Targets in other units; chance and floor of a squared error follow."""

    def change(training: Training, draw: Draw) -> None:
        task = training.task
        known_levels(factor**2 * task.chance, factor**2 * task.floor)(training, draw)
        targets(lambda y: factor * y)(training, draw)

    return change


def fixed_set(size: int, *, shuffle: bool = True, by_class: bool = False) -> Change:
    """A training set of so many samples, in random batches or in its own order."""

    def change(training: Training, draw: Draw) -> None:
        x, y = training.task.sample(size, draw.data)
        if by_class:
            order = y.flatten(1).float().mean(1).argsort() if y.dim() > 1 else y.argsort()
            x, y = x[order], y[order]
        training.dataset, training.shuffle = (x, y), shuffle

    return change


def duplicate_batches(times: int) -> Change:
    """Every batch comes so many times in a row."""
    return set_field(repeat=times)


def batch(size: int) -> Change:
    """Samples in a batch."""
    return set_field(batch=size)


# -- the loop ------------------------------------------------------------------------------------


def loss(function: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Another loss."""
    return set_field(loss=function)


def loss_times(factor: float) -> Change:
    """The recipe's own loss, multiplied."""

    def change(training: Training, draw: Draw) -> None:
        measure = training.loss or training.task.loss
        training.loss = lambda out, y: factor * measure(out, y)

    return change


def known_levels(chance: float | None = None, floor: float | None = None) -> Change:
    """Chance and floor of the loss, where a change of the loss has moved them."""

    def change(training: Training, draw: Draw) -> None:
        task = training.task
        training.task = replace(
            task,
            chance=task.chance if chance is None else chance,
            floor=task.floor if floor is None else floor,
        )

    return change


def averaged(decay: float = 0.99) -> Change:
    """A moving average of the weights is kept beside the model."""

    def change(training: Training, draw: Draw) -> None:
        mean = [p.detach().clone() for p in training.model.parameters()]

        def after(step: int) -> None:
            for kept, parameter in zip(mean, training.model.parameters(), strict=True):
                kept.lerp_(parameter.detach(), 1 - decay)

        training.after = after

    return change


def schedule(function: Callable[[float], float]) -> Change:
    """Factor of the learning rate by the share of the run that is over."""

    def change(training: Training, draw: Draw) -> None:
        steps = training.steps
        training.schedule = lambda step: function(step / steps)

    return change


def clip(norm: float) -> Change:
    """Clip the total gradient norm."""
    return set_field(clip=norm)


def eval_mode() -> Change:
    """The model stays in evaluation mode."""
    return set_field(train_mode=False)


def steps(count: int) -> Change:
    """Another default length; short and long stay what they are."""

    def change(training: Training, draw: Draw) -> None:
        training.steps = draw.steps(count)

    return change
