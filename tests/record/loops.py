"""Training loops of every form, each telling the truth about itself. One row of the table each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.record.truth import Truth
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.record import Watcher

Start = Callable[..., tuple[Watcher, Truth]]
STEPS = 6


@dataclass(frozen=True)
class Loop:
    """A loop, and how near the recorded numbers must come to its truth."""

    name: str
    run: Callable[[Start], None]
    tolerance: float = 2e-6


LOOPS: list[Loop] = []


def loop(tolerance: float = 2e-6) -> Callable[[Callable[[Start], None]], Callable[[Start], None]]:
    def add(run: Callable[[Start], None]) -> Callable[[Start], None]:
        LOOPS.append(Loop(run.__name__, run, tolerance))
        return run

    return add


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 3)
    ).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator).to(dtype)
    return x, torch.randint(0, 3, (16,), generator=generator)


def loss_of(model: nn.Module, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x, y = batch(step, dtype)
    return F.cross_entropy(model(x).float(), y)


def step_with(truth: Truth, optimizer: Any, *only: str) -> None:
    truth.before(*only)
    optimizer.step()
    truth.after(*only)


@loop()
def plain_sgd(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(stale=False)


@loop()
def plain_adamw(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


@loop()
def double_precision(start: Start) -> None:
    model = mlp(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, torch.float64).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made()


@loop(tolerance=5e-6)
def clipped_by_norm(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        step_with(truth, optimizer)
        truth.made(factor=0.05 / (float(norm) + 1e-6))


@loop(tolerance=5e-6)
def exploding_and_clipped_by_norm(start: Start) -> None:
    """A factor as small as a loss scale, and no scaler in sight."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(model, step) * 3e5).backward()
        truth.raw()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        step_with(truth, optimizer)
        truth.made(factor=0.05 / (float(norm) + 1e-6))


@loop(tolerance=2e-2)
def clipped_by_norm_in_bfloat16(start: Start) -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, torch.bfloat16).backward()
        truth.raw()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        step_with(truth, optimizer)
        truth.made(factor=0.05 / (float(norm) + 1e-6))


@loop()
def clipped_by_value(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        truth.raw()  # the raw gradient cannot be known: the series says so and gives this one
        step_with(truth, optimizer)
        truth.made(factor=None)


@loop()
def each_layer_clipped_apart(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for parameter in model.parameters():
            nn.utils.clip_grad_norm_([parameter], 0.01)
        truth.raw()
        step_with(truth, optimizer)
        truth.made(factor=None)


@loop()
def lbfgs(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        calls = 0

        def closure(step: int = step) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            truth.raw()  # the last one is what the step ends with
            return loss

        truth.before()
        optimizer.step(closure)
        truth.after()
        truth.made(backwards=calls)


@loop(tolerance=5e-6)
def closure_with_clipping(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        factor = 1.0

        def closure(step: int = step) -> Tensor:
            nonlocal factor
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            truth.raw()
            factor = 0.05 / (float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)) + 1e-6)
            return loss

        truth.before()
        optimizer.step(closure=closure)
        truth.after()
        truth.made(factor=factor)


@loop()
def accumulation_of_three(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            (loss_of(model, 3 * step + part) / 3).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(backwards=3, stale=False)


@loop()
def gradients_zeroed_in_place(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(stale=False)


@loop()
def gradients_never_cleared(start: Start) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    _, truth = start(model, optimizer)
    for step in range(STEPS):
        loss_of(model, step).backward()
        truth.raw()
        step_with(truth, optimizer)
        truth.made(stale=step > 0)
