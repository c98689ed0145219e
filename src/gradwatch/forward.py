"""Sending a chosen few numbers and the findings on to a service people already look at.

A thread stands between the training and the service: the training never waits.

Numbers are sent at most once in `INTERVAL` seconds, the newest of each name; findings at once. A
service that fails is mentioned in the log once and left alone.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gradwatch.errors import Exit, GradwatchError


class Service(Protocol):
    """Called from the outbox' thread only."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send the numbers of one step."""

    def finding(self, step: int, title: str, text: str) -> None:
        """Show a finding where the service has room for text."""

    def close(self) -> None:
        """End the service's run if it was started here, not by the user."""


class Wandb:
    """Weights & Biases: `gradwatch/…` beside the user's own metrics; findings as alerts."""

    def __init__(self, name: str, folder: Path) -> None:
        import wandb

        self._own = wandb.run is None
        self._run: Any = wandb.run or wandb.init(name=name, dir=str(folder))
        self._run.define_metric("gradwatch/step")
        self._run.define_metric("gradwatch/*", step_metric="gradwatch/step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log them on a step axis of their own, since the user's logs count their own steps."""
        self._run.log({"gradwatch/step": step, **values})

    def finding(self, step: int, title: str, text: str) -> None:
        """Keep it in the run's summary and send an alert."""
        self._run.summary[f"gradwatch/{title}"] = text
        self._run.alert(title=f"gradwatch: {title}", text=text)

    def close(self) -> None:
        """Finish the run if it was started here."""
        if self._own:
            self._run.finish()


class Mlflow:
    """MLflow: metrics with their step; findings as tags of the run."""

    def __init__(self, name: str, folder: Path) -> None:
        from mlflow import MlflowClient, active_run, start_run

        self._own = active_run() is None
        run = active_run() or start_run(run_name=name)
        self._id = run.info.run_id
        self._client: Any = MlflowClient()

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log them by the run's id, which works from any thread."""
        for key, value in values.items():
            self._client.log_metric(self._id, key, value, step=step)

    def finding(self, step: int, title: str, text: str) -> None:
        """Set a tag of the run."""
        self._client.set_tag(self._id, f"gradwatch.{title}", text)

    def close(self) -> None:
        """End the run if it was started here."""
        if self._own:
            from mlflow import end_run

            end_run()


class Tensorboard:
    """TensorBoard: an event file in the run's own folder, findings as text."""

    def __init__(self, name: str, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Write them to the event file at once."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finding(self, step: int, title: str, text: str) -> None:
        """Write it as text at the step where it begins."""
        self._writer.add_text(f"gradwatch/{title}", text, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class Trackio:
    """Trackio: metrics with their step; findings as a logged text."""

    def __init__(self, name: str, folder: Path) -> None:
        import trackio
        from trackio import context_vars

        # its current run is a context variable, which the outbox' thread does not see
        current = context_vars.current_run.get()
        self._own = current is None
        self._run: Any = current or trackio.init(project="gradwatch", name=name)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send the numbers of one step."""
        self._run.log(dict(values), step=step)

    def finding(self, step: int, title: str, text: str) -> None:
        """Log it as text."""
        self._run.log({f"gradwatch/{title}": text}, step=step)

    def close(self) -> None:
        """Finish the run if it was started here."""
        if self._own:
            self._run.finish()


SERVICES: dict[str, Callable[[str, Path], Service]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
    "tensorboard": Tensorboard,
    "trackio": Trackio,
}


INTERVAL = 1.0
PATIENCE = 10.0
WAITING = 256
"""Items the outbox holds while a service is slow; numbers beyond it are dropped, findings never."""

log = logging.getLogger("gradwatch")
Item = tuple[int, Mapping[str, float] | tuple[str, str]]


class Outbox:
    """Made with a service; `numbers` and `finding` may be called from the training's hooks."""

    def __init__(self, service: Service, *, interval: float = INTERVAL) -> None:
        self._service, self._interval = service, interval
        self._items: queue.Queue[Item | None] = queue.Queue()
        self._next = 0.0
        self._off = False
        self._thread = threading.Thread(target=self._work, name="gradwatch-forward", daemon=True)
        self._thread.start()

    def numbers(self, step: int, values: Mapping[str, float], *, last: bool = False) -> None:
        """Send these, unless some were sent a moment ago (`last` ones go anyway)."""
        now = time.monotonic()
        if self._off or (not last and (now < self._next or self._items.qsize() >= WAITING)):
            return
        self._next = now + self._interval
        self._items.put((step, dict(values)))

    def finding(self, step: int, title: str, text: str) -> None:
        """Send a finding; it is never dropped, however slow the service is."""
        if not self._off:
            self._items.put((step, (title, text)))

    def close(self, timeout: float = PATIENCE) -> None:
        """Send what waits, within `timeout` seconds."""
        self._items.put(None)
        self._thread.join(timeout)
        self._off = True

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            self._try(item)
        try:
            self._service.close()
        except Exception as error:
            log.warning("gradwatch: closing %s failed: %s", type(self._service).__name__, error)

    def _try(self, item: Item) -> None:
        if self._off:
            return
        step, what = item
        try:
            if isinstance(what, tuple):
                self._service.finding(step, *what)
            else:
                self._service.numbers(step, what)
        except Exception as error:
            self._off = True
            name = type(self._service).__name__
            log.warning("gradwatch: %s failed (%s); nothing more is sent there", name, error)


def open_outbox(service: str, name: str, folder: Path) -> Outbox:
    """The outbox of a service by its word; wrong words and missing packages raise here."""
    if service not in SERVICES:
        known = ", ".join(SERVICES)
        raise GradwatchError(f"Cannot forward to {service!r}; known: {known}.", Exit.USAGE)
    try:
        return Outbox(SERVICES[service](name, folder))
    except ImportError as error:
        raise GradwatchError(
            f"Forwarding to {service} needs its package, which cannot be imported: {error}.",
            Exit.USAGE,
        ) from error
