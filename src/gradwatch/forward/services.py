"""The services, each through its own API: where numbers go, and how findings are told there.

A service is imported only when it is asked for; it uses the run the user has already started, and
starts one of its own only where there is none.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Service(Protocol):
    """Called from the outbox' thread only."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None: ...
    def finding(self, step: int, title: str, text: str) -> None: ...
    def close(self) -> None: ...


class Wandb:
    """Weights & Biases: `gradwatch/…` beside the user's own metrics; findings as alerts."""

    def __init__(self, name: str, folder: Path) -> None:
        import wandb

        self._own = wandb.run is None
        self._run: Any = wandb.run or wandb.init(name=name, dir=str(folder))
        self._run.define_metric("gradwatch/step")
        self._run.define_metric("gradwatch/*", step_metric="gradwatch/step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"gradwatch/step": step, **values})

    def finding(self, step: int, title: str, text: str) -> None:
        self._run.summary[f"gradwatch/{title}"] = text
        self._run.alert(title=f"gradwatch: {title}", text=text)

    def close(self) -> None:
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
        for key, value in values.items():
            self._client.log_metric(self._id, key, value, step=step)

    def finding(self, step: int, title: str, text: str) -> None:
        self._client.set_tag(self._id, f"gradwatch.{title}", text)

    def close(self) -> None:
        if self._own:
            from mlflow import end_run

            end_run()


class Tensorboard:
    """TensorBoard: an event file in the run's own folder, findings as text."""

    def __init__(self, name: str, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finding(self, step: int, title: str, text: str) -> None:
        self._writer.add_text(f"gradwatch/{title}", text, step)
        self._writer.flush()

    def close(self) -> None:
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
        self._run.log(dict(values), step=step)

    def finding(self, step: int, title: str, text: str) -> None:
        self._run.log({f"gradwatch/{title}": text}, step=step)

    def close(self) -> None:
        if self._own:
            self._run.finish()


SERVICES: dict[str, Callable[[str, Path], Service]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
    "tensorboard": Tensorboard,
    "trackio": Trackio,
}
