"""Loops over models whose parameters are odd, or change."""

import torch
from tests.record.loops import STEPS, Start, batch, loop, loss_of, mlp, step_with
from torch import Tensor, nn
from torch.nn import functional as F


@loop()
def frozen_and_unfrozen(start: Start) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        if step == 2:
            model[0].requires_grad_(True)
        if step == 4:
            model[4].requires_grad_(False)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


@loop()
def parameter_swapped(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        if step == 3:
            model[2].weight = nn.Parameter(torch.randn(9, 12) * 0.1)
            optimizer.add_param_group({"params": [model[2].weight]})
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.extra: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y if self.extra is None else y + self.extra(y)


@loop()
def layer_added(start: Start) -> None:
    model = Grows()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        if step == 3:
            model.extra = nn.Linear(3, 3)
            optimizer.add_param_group({"params": model.extra.parameters()})
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(20, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(self.embed(tokens))))
        return out


@loop()
def tied(start: Start) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        tokens = torch.arange(8) + step
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), (tokens + 1) % 20).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(20, 6, sparse=True)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens))
        return out


@loop()
def sparse_embedding(start: Start) -> None:
    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        tokens = torch.tensor([1, 1, 2, 5, step])
        optimizer.zero_grad()
        F.cross_entropy(model(tokens), tokens % 4).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.turn = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.turn).abs()


@loop()
def complex_numbers(start: Start) -> None:
    model = Waves()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=None)


class Odd(nn.Module):
    """Parameters of no element, without storage, without dimension, and never used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.nothing = nn.Parameter(torch.zeros(0, 4))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(3, 3))
        self.absent = nn.Parameter(torch.empty(4, 4, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) * self.scale + self.nothing.sum()
        return out


@loop()
def odd_parameters(start: Start) -> None:
    model = Odd()
    held = [p for name, p in model.named_parameters() if name != "absent"]
    optimizer = torch.optim.AdamW(held, 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 5, 3)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.conv(x)).mean((2, 3)))
        return out


@loop()
def channels_last(start: Start) -> None:
    model = Picture()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), batch(0)[1][:4])
        F.cross_entropy(model(x), batch(step)[1][:4]).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


@loop()
def transposed_weight(start: Start) -> None:
    model = mlp()
    with torch.no_grad():
        model[2].weight = nn.Parameter(torch.randn(12, 9).mul(0.1).t())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


@loop()
def compiled_model(start: Start) -> None:
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    assert isinstance(compiled, nn.Module)
    optimizer = torch.optim.AdamW(compiled.parameters(), 0.01)
    _, truth = start(compiled, optimizer, bare=model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(compiled, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


@loop()
def cast_during_training(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        dtype = torch.float32 if step < 3 else torch.float64
        if step == 3:
            model.to(torch.float64)
        optimizer.zero_grad()
        loss_of(model, step, dtype).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()
