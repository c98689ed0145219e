"""`watch`: the one line in a training loop."""

import os
from collections.abc import Iterable
from typing import Any

from torch.nn import Module

import gradwatch.record as recording
from gradwatch.forward import open_outbox
from gradwatch.live.forwarding import Forwarding
from gradwatch.record import ALL, Disabled, Watcher


def watch(
    model: Module,
    *optimizers: Any,
    run: str | os.PathLike[str] | None = None,
    step: int | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    record: Iterable[str] = ALL,
    scaler: Any = None,
    every: int | None = None,
    budget: float = 0.01,
    forward: str | None = None,
) -> Watcher | Disabled:
    """Record the training of `model`; call it once, after model and optimizers are made.

    `run` is a name (`runs/NAME`) or a path; `step` the coming step's number when a training is
    resumed. `include` and `exclude` choose parameters or layers by name, with `*` and `?`; `record`
    chooses among gradients, weights, updates, histograms, activations. Give the GradScaler as
    `scaler`. `budget` is the share of the run's time that recording may take after its first two
    seconds; `every=n` instead records everything on every n-th step, whatever it costs. `forward`
    sends a few numbers and the findings to a service: wandb, mlflow, tensorboard or trackio.
    """
    forwarding = Forwarding() if forward is not None else None
    watcher = recording.watch(
        model,
        *optimizers,
        run=run,
        step=step,
        include=include,
        exclude=exclude,
        record=record,
        scaler=scaler,
        every=every,
        budget=budget,
        monitor=forwarding,
    )
    if forward is not None and forwarding is not None and isinstance(watcher, Watcher):
        _open(forwarding, forward, watcher)
    return watcher


def _open(forwarding: Forwarding, service: str, watcher: Watcher) -> None:
    """Only now is the run's folder known; a service that cannot be had leaves nothing behind."""
    try:
        forwarding.open(open_outbox(service, watcher.run_dir.name, watcher.run_dir))
    except BaseException:
        watcher.close()
        raise
