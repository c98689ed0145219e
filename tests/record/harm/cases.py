"""The table of cases: model × optimizer × loop × precision."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tests.record.harm.loops import (
    Gpt,
    Loop,
    Recurrent,
    adam,
    classes,
    mlp,
    plain,
    sgd,
    squares,
    tokens,
    vectors,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

X = vectors(12, 6)
IMAGES = vectors(4, 3, 8, 8)
IDS = tokens(3, 8, 20)


def with_optimizer(make: Callable[..., Any], **options: Any) -> Loop:
    model = mlp(nn.ReLU(), nn.Linear(16, 16), nn.Tanh())
    return plain(model, make(model.parameters(), **options), X, classes)


def lbfgs() -> Loop:
    model = mlp(nn.Tanh())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(index: int) -> Tensor:
        data = X()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = squares(model(data))
            loss.backward()
            return loss

        return torch.as_tensor(optimizer.step(closure))

    return Loop(model, [optimizer], step)


def convolutional(*, inplace: bool = False, last: bool = False) -> Loop:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return plain(model, sgd(model, momentum=0.9), IMAGES, classes)


def batch_norm_in_eval() -> Loop:
    model = mlp(nn.BatchNorm1d(16), nn.ReLU())

    def between(index: int) -> None:
        model.train(index % 10 < 5)

    return plain(model, sgd(model), X, between=between)


def encoder(**options: Any) -> Loop:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
    model = nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoder(layer, 2, None, False))
    return plain(model, adam(model), IDS)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, shares = self.attention(x, x, x)
        out: Tensor = y + shares.mean()
        return out


def attention() -> Loop:
    model = Attention()
    return plain(model, adam(model), vectors(3, 5, 8))


def frozen(*, later: bool = False) -> Loop:
    model = mlp(nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    model[0].requires_grad_(False)

    def between(index: int) -> None:
        if later and index == 40:
            model[0].requires_grad_(True)

    return plain(model, sgd(model), X, between=between)


def sparse(*, plain_sgd: bool) -> Loop:
    model = nn.Sequential(nn.Embedding(50, 6, sparse=True), nn.Flatten(), nn.Linear(48, 4))
    rest = sgd(model[2])
    first = (torch.optim.SGD if plain_sgd else torch.optim.SparseAdam)(
        model[0].parameters(), lr=0.01
    )

    def step(index: int) -> Tensor:
        first.zero_grad()
        rest.zero_grad()
        loss = squares(model(torch.randint(0, 50, (3, 8))))
        loss.backward()
        first.step()
        rest.step()
        return loss

    return Loop(model, [first, rest], step)


def precision(dtype: torch.dtype) -> Loop:
    model = mlp(nn.LayerNorm(16), nn.ReLU()).to(dtype)
    return plain(model, sgd(model), vectors(12, 6, dtype=dtype))


def autocast() -> Loop:
    model = mlp(nn.LayerNorm(16), nn.GELU())
    optimizer = adam(model)

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = classes(model(X()))
        loss.backward()
        optimizer.step()
        return loss

    return Loop(model, [optimizer], step)


def scaled(**options: Any) -> Loop:
    model = mlp()
    optimizer = adam(model, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10)

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        loss = squares(model(X()))
        if index % 23 == 7:
            loss = loss * float("inf")  # an overflow: the step is skipped
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Loop(model, [optimizer], step, scaler=scaler)


def checkpointed(**options: Any) -> Loop:
    model = Gpt()
    model.through = partial(checkpoint, **options)
    return plain(model, adam(model), IDS)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    keep = operation in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def selective() -> Loop:
    context = partial(create_selective_checkpoint_contexts, _policy)
    return checkpointed(use_reentrant=False, context_fn=context)


def gradient_penalty() -> Loop:
    model = mlp(nn.Softplus())
    optimizer = adam(model)

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        data = X().requires_grad_()
        value = model(data).sum()
        (slope,) = torch.autograd.grad(value, data, create_graph=True)
        loss: Tensor = (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Loop(model, [optimizer], step)


def compiled(backend: str, *, watched: str) -> Loop:
    torch._dynamo.reset()
    model = mlp(nn.BatchNorm1d(16), nn.ReLU())
    fast: Any = torch.compile(model, backend=backend)
    optimizer = sgd(model)
    loop = plain(fast, optimizer, X, classes)
    return Loop(model if watched == "inner" else fast, [optimizer], loop.step)


def compiled_in_place() -> Loop:
    torch._dynamo.reset()
    model = mlp()
    model.compile(backend="eager")
    return plain(model, sgd(model), X)


def parametrized(kind: Callable[[nn.Module], nn.Module]) -> Loop:
    model = nn.Sequential(kind(nn.Linear(6, 16)), nn.ReLU(), kind(nn.Linear(16, 4)))
    return plain(model, sgd(model), X)


def averaged() -> Loop:
    model = mlp()
    optimizer = sgd(model)
    mean = torch.optim.swa_utils.AveragedModel(model)
    copies = nn.ModuleList()

    def after(index: int) -> None:
        mean.update_parameters(model)
        if index % 30 == 5:
            copies.append(copy.deepcopy(model))
            copies[-1](X())

    loop = plain(model, optimizer, X)

    def step(index: int) -> Tensor:
        loss = loop.step(index)
        after(index)
        return loss

    return Loop(model, [optimizer], step, extra=[mean, copies])


def functional() -> Loop:
    model = mlp()
    optimizer = sgd(model)

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        shifted = {name: value * 1.01 for name, value in model.named_parameters()}
        loss = squares(torch.func.functional_call(model, shifted, (X(),)))
        loss.backward()
        optimizer.step()
        return loss

    return Loop(model, [optimizer], step)


def per_sample() -> Loop:
    model = mlp()
    optimizer = sgd(model)

    def loss_of(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return squares(torch.func.functional_call(model, parameters, (sample[None],)))

    def step(index: int) -> Tensor:
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        gradients = torch.vmap(torch.func.grad(loss_of), (None, 0))(parameters, X())
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()
        return parameters["0.weight"].sum()

    return Loop(model, [optimizer], step)


def accumulating() -> Loop:
    model = mlp(nn.Dropout(0.2))
    optimizer = sgd(model)

    def step(index: int) -> Tensor:
        total = torch.zeros(())
        for _ in range(3):
            loss = squares(model(X())) / 3
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return total

    return Loop(model, [optimizer], step)


def clipped(how: Callable[..., Any], limit: float) -> Loop:
    model = mlp()
    return plain(model, adam(model), X, between=lambda index: how(model.parameters(), limit))


def gan() -> Loop:
    model = nn.ModuleDict({"g": mlp(), "d": nn.Sequential(nn.Linear(4, 8), nn.ReLU())})
    optimizers = [adam(model["d"]), adam(model["g"])]

    def step(index: int) -> Tensor:
        fake = model["g"](X())
        optimizers[0].zero_grad()
        loss: Tensor = model["d"](fake.detach()).mean() - model["d"](torch.randn(12, 4)).mean()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-model["d"](fake).mean()).backward()
        optimizers[1].step()
        return loss

    return Loop(model, optimizers, step)


def sharpness_aware() -> Loop:
    model = mlp()
    optimizer = sgd(model)

    def step(index: int) -> Tensor:
        data = X()
        squares(model(data)).backward()
        with torch.no_grad():
            slopes = [p.grad for p in model.parameters() if p.grad is not None]
            moves = [0.05 * slope / slope.norm() for slope in slopes]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        loss = squares(model(data))
        loss.backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Loop(model, [optimizer], step)


class Branching(nn.Module):
    """By chance one of two branches gets no gradient; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.stem(x).relu()
        return {"out": (self.left if torch.rand(()) > 0.5 else self.right)(h) * self.scale}


def branching() -> Loop:
    model = Branching()
    return plain(model, adam(model), X, lambda output: squares(output["out"]))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.out, self.nothing = nn.Linear(6, 4), nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=6))
        return out


def complex_and_empty() -> Loop:
    model = Complex()
    return plain(model, sgd(model), X)


def users_hooks() -> Loop:
    """The user's own hooks change outputs and gradients; ours must not disturb them."""

    def halved(module: nn.Module, to: Any, given: Any) -> tuple[Tensor]:
        return (to[0] * 0.5,)

    model = mlp()
    model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    model[1].register_full_backward_hook(halved)
    model.get_parameter("2.weight").register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    return plain(model, sgd(model), X)


def saved_on_cpu() -> Loop:
    model = mlp(nn.Tanh())
    optimizer = sgd(model)

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            loss = squares(model(X()))
        loss.backward()
        optimizer.step()
        return loss

    return Loop(model, [optimizer], step)


def optimizer_in_backward() -> Loop:
    model = mlp()
    optimizers: dict[Tensor, torch.optim.Optimizer]
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def apply(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(apply)

    def step(index: int) -> Tensor:
        loss = squares(model(X()))
        loss.backward()
        return loss

    return Loop(model, list(optimizers.values()), step)


def validating() -> Loop:
    model = mlp(nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loop = plain(model, optimizer, X)

    def step(index: int) -> Tensor:
        loss = loop.step(index)
        schedule.step()
        if index % 7 == 3:
            model.eval()
            with torch.no_grad():
                model(X())
            model(X())  # without no_grad, as people forget
            model.train()
        return loss

    return Loop(model, [optimizer], step)


def lazy() -> Loop:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    model(X())
    return plain(model, sgd(model), X)


def growing() -> Loop:
    """A layer and a group come later; a parameter is replaced."""
    model = mlp()
    optimizer = sgd(model)

    def between(index: int) -> None:
        if index == 30:
            model.append(nn.Linear(4, 4))
            optimizer.add_param_group({"params": model[-1].parameters(), "lr": 0.001})
        if index == 60:
            old = model.get_parameter("0.weight")
            model[0].weight = nn.Parameter(old.detach().clone())
            optimizer.param_groups[0]["params"][0] = model[0].weight

    return plain(model, optimizer, X, between=between)


def anomaly() -> Loop:
    model = mlp()
    loop = plain(model, sgd(model), X)

    def step(index: int) -> Tensor:
        with torch.autograd.set_detect_anomaly(True):
            return loop.step(index)

    return Loop(model, loop.optimizers, step)


def not_finite() -> Loop:
    """It turns to NaN after a few steps and stays there."""
    model = mlp()
    return plain(
        model, sgd(model), X, lambda y: squares(y) * (float("nan") if y.sum() > 4 else 1.0)
    )


def leaf() -> Loop:
    model = nn.Linear(6, 3)
    return plain(model, sgd(model), X)


CASES: dict[str, Callable[[], Loop]] = {
    "mlp, sgd": partial(with_optimizer, torch.optim.SGD, lr=0.05),
    "mlp, nesterov": partial(
        with_optimizer, torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3
    ),
    "mlp, adam": partial(with_optimizer, torch.optim.Adam, foreach=False),
    "mlp, adamw foreach": partial(with_optimizer, torch.optim.AdamW, foreach=True),
    "mlp, adamw fused": partial(with_optimizer, torch.optim.AdamW, fused=True),
    "mlp, amsgrad": partial(with_optimizer, torch.optim.Adam, amsgrad=True),
    "mlp, rmsprop": partial(with_optimizer, torch.optim.RMSprop),
    "mlp, adagrad": partial(with_optimizer, torch.optim.Adagrad),
    "mlp, lbfgs": lbfgs,
    "cnn": convolutional,
    "cnn, in place": partial(convolutional, inplace=True),
    "cnn, channels last": partial(convolutional, last=True),
    "batch norm, modes": batch_norm_in_eval,
    "dropout": lambda: plain(m := mlp(nn.Dropout(0.5)), sgd(m), X),
    "lstm": lambda: plain(m := Recurrent(nn.LSTM), adam(m), IDS),
    "gru": lambda: plain(m := Recurrent(nn.GRU), adam(m), IDS),
    "transformer": partial(encoder, dropout=0.1),
    "transformer, norm first": partial(encoder, norm_first=True, activation="gelu"),
    "attention with weights": attention,
    "gpt, tied": lambda: plain(m := Gpt(), adam(m), IDS, classes),
    "frozen": frozen,
    "unfrozen later": partial(frozen, later=True),
    "sparse, SparseAdam": partial(sparse, plain_sgd=False),
    "sparse, sgd": partial(sparse, plain_sgd=True),
    "bf16": partial(precision, torch.bfloat16),
    "fp16": partial(precision, torch.float16),
    "fp64": partial(precision, torch.float64),
    "autocast": autocast,
    "scaler": scaled,
    "scaler, fused": partial(scaled, fused=True),
    "checkpoint, reentrant": partial(checkpointed, use_reentrant=True),
    "checkpoint": partial(checkpointed, use_reentrant=False),
    "checkpoint, selective": selective,
    "double backward": gradient_penalty,
    "compiled, watched inside": partial(compiled, "eager", watched="inner"),
    "compiled, watched outside": partial(compiled, "aot_eager", watched="outer"),
    "compiled in place": compiled_in_place,
    "weight norm": partial(parametrized, parametrizations.weight_norm),
    "spectral norm": partial(parametrized, parametrizations.spectral_norm),
    "averaged and copied": averaged,
    "functional call": functional,
    "per sample gradients": per_sample,
    "accumulation": accumulating,
    "clipped by norm": partial(clipped, nn.utils.clip_grad_norm_, 0.1),
    "clipped by value": partial(clipped, nn.utils.clip_grad_value_, 0.01),
    "gan": gan,
    "sharpness aware": sharpness_aware,
    "branches and dicts": branching,
    "complex and empty": complex_and_empty,
    "the user's hooks": users_hooks,
    "saved tensors on the cpu": saved_on_cpu,
    "optimizer in the backward": optimizer_in_backward,
    "validation and schedule": validating,
    "lazy": lazy,
    "growing": growing,
    "anomaly detection": anomaly,
    "not finite": not_finite,
    "a single layer": leaf,
}
