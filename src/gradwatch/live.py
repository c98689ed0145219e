"""`watch`, the one line in a training loop: recording, judging and forwarding joined."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks import Check, checks_for
from gradwatch.checks.logged import LossLevel
from gradwatch.diagnosis import Diagnosis, LiveDiagnosis, diagnose
from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding
from gradwatch.forward import Outbox, open_outbox
from gradwatch.mode import Mode, mode
from gradwatch.notebook import show_card
from gradwatch.record import ALL, Disabled, StepMonitor, StepRows, Watcher
from gradwatch.record import watch as start_recording
from gradwatch.record.watch import Models, rank_and_world
from gradwatch.run import Run, Subject
from gradwatch.stats import Family, Stat
from gradwatch.store import open_run
from gradwatch.text import plain

FORWARDED = ("loss", "val_loss", "clip_factor")


class Forwarding:
    """Passes everything to the monitor inside, and a few numbers to the outbox."""

    def __init__(self, inner: StepMonitor) -> None:
        self._outbox: Outbox | None = None
        self._inner = inner
        self._values: dict[str, float] = {}
        self._step = 0

    def open(self, outbox: Outbox) -> None:
        """From now on numbers are sent."""
        self._outbox = outbox

    def finding(self, step: int, check: str, message: str) -> None:
        """Pass a finding of the live checks on to the service."""
        if self._outbox is not None:
            self._outbox.finding(step, check, message)

    @property
    def should_stop(self) -> bool:
        """As the monitor inside judges."""
        return self._inner.should_stop

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """Passed on: the service is sent no names."""
        self._inner.declared(subjects, ids)

    def noted(self, info: Mapping[str, Any]) -> None:
        """Passed on."""
        self._inner.noted(info)

    def after_step(self, step: int, rows: Sequence[StepRows], scalars: Mapping[str, float]) -> None:
        """Let the monitor judge the step first, then send a few of its numbers."""
        self._inner.after_step(step, rows, scalars)
        self._step = step
        self._values = {f"gradwatch/{k}": scalars[k] for k in FORWARDED if k in scalars}
        for batch in rows:
            self._values.update(summary(batch))
        if self._outbox is not None:
            self._outbox.numbers(step, self._values)

    def close(self) -> None:
        """Send the newest numbers once more, whatever the interval, and close both."""
        self._inner.close()
        if self._outbox is not None:
            if self._values:
                self._outbox.numbers(self._step, self._values, last=True)
            self._outbox.close()


def summary(batch: StepRows) -> dict[str, float]:
    """One or two numbers of a family: what a chart beside the loss has room for."""
    if batch.family is Family.GRAD:
        norms = batch.rows[Stat.GRAD_NORM]
        bad = batch.rows[Stat.GRAD_NAN].sum() + batch.rows[Stat.GRAD_INF].sum()
        total = float(np.sqrt(np.nansum(norms**2)))
        return {"gradwatch/grad_norm": total, "gradwatch/grad_nonfinite": float(bad)}
    if batch.family is Family.UPDATE:
        ratios = batch.rows[Stat.UPDATE_RATIO]
        finite = ratios[np.isfinite(ratios)]
        return {"gradwatch/update_ratio": float(np.median(finite))} if len(finite) else {}
    return {}


def watch(
    model: Models,
    *optimizers: Any,
    run: str | os.PathLike[str] | None = None,
    step: int | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    record: Iterable[str] = ALL,
    scaler: Any = None,
    every: int | None = None,
    budget: float = 0.01,
    keep: str = "2GB",
    loss: str = LossLevel.AUTO,
    on_finding: Callable[[Finding], None] | None = None,
    forward: str | None = None,
) -> Watcher | Disabled:
    """Record the training of `model`; call it once, after model and optimizers are made.

    Networks that are trained together go into a list or a dict, `watch([G, D], opt_g, opt_d)`, and
    are named by their place or key. At the end one line tells where the run is and what to type.
    `run` is a name (`runs/NAME`) or a path; `step` the coming step's number when a training is
    resumed. `include` and `exclude` choose parameters or layers by name, with `*` and `?`; `record`
    chooses among gradients, weights, updates, histograms, activations. Give the GradScaler as
    `scaler`. `budget` is the share of the run's time that recording may take after its first two
    seconds; `every=n` instead records everything on every n-th step, whatever it costs. `keep`
    bounds the run's folder by its size ("500MB") or full rows by their age ("7d"); the oldest rows
    go first, and lowest, highest and last values of 64 rows stay. "all" keeps everything.
    `loss` says what the level of the loss means: "relative" that it says nothing
    (policies, networks that work against each other, energies), so that no check compares it with
    its start; "absolute" that it counts; by default the checks notice by themselves. `forward`
    sends a few numbers and the findings to a service: wandb, mlflow, tensorboard or trackio.
    `on_finding` is called with each finding the live checks make, once; `watcher.should_stop` turns
    true when the training cannot recover.
    """
    monitor = LiveDiagnosis(on_finding)
    forwarding = Forwarding(monitor) if forward is not None else None
    if forwarding is not None:
        monitor.on_finding = _both(forwarding, on_finding)
    watcher = start_recording(
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
        keep=keep,
        loss=loss,
        monitor=forwarding or monitor,
    )
    if isinstance(watcher, Watcher):
        monitor.run_dir = str(watcher.run_dir)
        if rank_and_world()[0] == 0 and mode() is not Mode.QUIET:
            watcher.on_closed = partial(say_where, watcher.run_dir.absolute())
        if forward is not None and forwarding is not None:
            _open(forwarding, forward, watcher)
    return watcher


LONGEST_JUDGED = 0.5
"""Seconds that judging a run may take at its end."""
MOST_JUDGED = 2_000_000
"""Values of one statistic up to which it is tried: these alone take half of that time."""


def say_where(run_dir: Path, ended: bool = True) -> None:
    """One line on standard error, or a card in a notebook: the run, the verdict, what to type.

    Where an exception ended the training nothing is judged: the line comes at once.
    """
    home = Path("runs")
    inside = run_dir.parent == home.absolute()
    name = run_dir.name if inside else _shortest(run_dir)
    diagnosis = _judged(run_dir) if ended else None
    verdict = f"{diagnosis.verdict}, {diagnosis.counted}" if diagnosis is not None else ""
    place = plain(str(home / name if inside else name))
    command = f"gradwatch diagnose {plain(shlex.quote(name))}"
    if not show_card(place, verdict, command):
        said = f"gradwatch: {place}{': ' * bool(verdict)}{verdict}. Next: {command}"
        sys.stderr.write(said + "\n")


def _shortest(path: Path) -> str:
    """Below the current folder as one would type it there; elsewhere in full."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _judged(run_dir: Path) -> Diagnosis | None:
    """The diagnosis, where it takes no longer than it may."""
    until = time.monotonic() + LONGEST_JUDGED

    def while_there_is_time(run: Run) -> Iterator[Check]:
        for check in checks_for(run):
            if time.monotonic() > until:
                raise TimeoutError
            yield check

    try:
        run = open_run(run_dir)
        small = len(run.steps) * len(run.names) <= MOST_JUDGED
        return diagnose(run, while_there_is_time(run)) if small else None
    except (GradwatchError, TimeoutError):  # what cannot be read is still said to be there
        return None


def _both(
    forwarding: Forwarding, on_finding: Callable[[Finding], None] | None
) -> Callable[[Finding], None]:
    """Send each finding to the service, then hand it to the user."""

    def report(finding: Finding) -> None:
        forwarding.finding(finding.first_step, finding.check, finding.message)
        if on_finding is not None:
            on_finding(finding)

    return report


def _open(forwarding: Forwarding, service: str, watcher: Watcher) -> None:
    """Only now is the run's folder known; a service that cannot be had leaves nothing behind."""
    try:
        forwarding.open(open_outbox(service, watcher.run_dir.name, watcher.run_dir))
    except BaseException:
        watcher.close()
        raise
