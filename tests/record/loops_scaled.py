"""Loops with a GradScaler."""

from typing import Any

import torch
from tests.record.loops import STEPS, Start, loop, loss_of, mlp
from torch import nn

OVERFLOW = 3


def scaler_of(scale: float = 1024.0) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


def _run(
    start: Start,
    *,
    fused: bool = False,
    given: bool = True,
    clip: float | None = None,
    overflow: bool = False,
) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused)
    scaler = scaler_of()
    _, truth = start(model, optimizer, **({"scaler": scaler} if given else {}))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        if overflow and step == OVERFLOW:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        truth.raw(scale=scaler.get_scale())
        factor = 1.0
        if clip is not None:
            scaler.unscale_(optimizer)
            factor = clip / (float(nn.utils.clip_grad_norm_(model.parameters(), clip)) + 1e-6)
        truth.before()
        scaler.step(optimizer)
        truth.after()
        scaler.update()
        truth.made(factor=factor, skipped=overflow and step == OVERFLOW)


@loop()
def scaler_given(start: Start) -> None:
    _run(start)


@loop()
def scaler_found(start: Start) -> None:
    _run(start, given=False)


@loop(tolerance=5e-6)
def scaler_and_clipping(start: Start) -> None:
    _run(start, clip=0.05)


@loop(tolerance=5e-6)
def scaler_found_and_clipping(start: Start) -> None:
    _run(start, clip=0.05, given=False)


@loop()
def scaler_overflow(start: Start) -> None:
    _run(start, overflow=True)


@loop()
def scaler_found_overflow(start: Start) -> None:
    _run(start, overflow=True, given=False)


@loop()
def scaler_overflow_at_once(start: Start) -> None:
    """As in practice: the first scale is too large, and it takes a few steps to find out."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = scaler_of(2.0**127)
    _, truth = start(model, optimizer, scaler=scaler)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step) * 32.0).backward()
        truth.raw(scale=scaler.get_scale())
        truth.before()
        scaler.step(optimizer)
        truth.after()
        before = scaler.get_scale()
        scaler.update()
        skipped = scaler.get_scale() < before
        if skipped:
            truth.now.raw = dict.fromkeys(truth.now.raw)
        truth.made(skipped=skipped)
    assert truth.steps[0].skipped
    assert not truth.steps[STEPS - 1].skipped


@loop()
def gradients_thrown_away(start: Start) -> None:
    """Two backward passes for each step, the first one only looked at; no step was skipped."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    elsewhere = scaler_of()
    _, truth = start(model, optimizer, scaler=elsewhere)
    for step in range(STEPS):
        loss_of(model, step + 100).backward()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        truth.raw()
        truth.before()
        optimizer.step()
        truth.after()
        optimizer.zero_grad()
        truth.made(backwards=2)


@loop()
def scaler_fused(start: Start) -> None:
    _run(start, fused=True)


@loop()
def scaler_fused_not_given(start: Start) -> None:
    _run(start, fused=True, given=False)


@loop(tolerance=5e-6)
def scaler_fused_and_clipping(start: Start) -> None:
    _run(start, fused=True, clip=0.05)


@loop()
def scaler_fused_overflow(start: Start) -> None:
    _run(start, fused=True, overflow=True)
