"""`watch`: the one line in a training loop."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from torch.nn import Module

import gradwatch.record as recording
from gradwatch.diagnosis import LiveDiagnosis
from gradwatch.finding import Finding
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
    on_finding: Callable[[Finding], None] | None = None,
    forward: str | None = None,
) -> Watcher | Disabled:
    """Record the training of `model`; call it once, after model and optimizers are made.

    `run` is a name (`runs/NAME`) or a path; `step` the coming step's number when a training is
    resumed. `include` and `exclude` choose parameters or layers by name, with `*` and `?`; `record`
    chooses among gradients, weights, updates, histograms, activations. Give the GradScaler as
    `scaler`. `budget` is the share of the run's time that recording may take after its first two
    seconds; `every=n` instead records everything on every n-th step, whatever it costs. `forward`
    sends a few numbers and the findings to a service: wandb, mlflow, tensorboard or trackio.
    `on_finding` is called with each finding the live checks make, once; `watcher.should_stop` turns
    true when the training cannot recover.
    """
    monitor = LiveDiagnosis(on_finding)
    forwarding = Forwarding(monitor) if forward is not None else None
    if forwarding is not None:
        monitor.on_finding = _both(forwarding, on_finding)
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
        monitor=forwarding or monitor,
    )
    if isinstance(watcher, Watcher):
        monitor.run_dir = str(watcher.run_dir)
        if forward is not None and forwarding is not None:
            _open(forwarding, forward, watcher)
    return watcher


def _both(
    forwarding: Forwarding, on_finding: Callable[[Finding], None] | None
) -> Callable[[Finding], None]:
    """Tell the service, then the user."""

    def tell(finding: Finding) -> None:
        forwarding.finding(finding.first_step, finding.check, finding.message)
        if on_finding is not None:
            on_finding(finding)

    return tell


def _open(forwarding: Forwarding, service: str, watcher: Watcher) -> None:
    """Only now is the run's folder known; a service that cannot be had leaves nothing behind."""
    try:
        forwarding.open(open_outbox(service, watcher.run_dir.name, watcher.run_dir))
    except BaseException:
        watcher.close()
        raise
