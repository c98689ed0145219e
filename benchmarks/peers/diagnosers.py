"""Other diagnosers as observers of a loop, each used as its own documentation says.

Their detection defaults are left alone. Packages are imported by name when they are wanted, so
that the tables can be read where none of them is installed.
"""

import logging
import math
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from benchmarks.peers.names import NEURAL_OBSERVATORY
from gradwatch.zoo.training import Training, Turn


class Diagnoser:
    """Sees a training from `begin_step` to `said`; does nothing by itself."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def begin_step(self, step: int, turn: Turn) -> None:
        """Before the forward pass."""

    def before_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """After backward."""

    def after_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """After the update."""

    def end_step(self, step: int, validation: float | None, numbers: Mapping[str, float]) -> None:
        """After all turns."""

    def said(self) -> set[str]:
        """What it warned of, in its own words."""
        return set()


class Torchmortem(Diagnoser):
    """`Autopsy` around the loop, `step(loss=…)` after each update."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        module = import_module("torchmortem")
        self.autopsy = module.Autopsy(training.model, optimizer=training.optimizer)
        self.autopsy.attach()

    def after_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        self.autopsy.step(loss=loss.item())

    def said(self) -> set[str]:
        self.autopsy.detach()
        findings = self.autopsy.get_report().findings
        return {f.title.partition(" in ")[0] for f in findings if f.severity.name != "INFO"}


class NeuralObservatory(Diagnoser):
    """`watch()`, `step()` before each forward pass, `report()` at the end."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.observatory = import_module("neural_observatory").Observatory(training.model)
        self.observatory.watch()

    def begin_step(self, step: int, turn: Turn) -> None:
        self.observatory.step(step=step)

    def said(self) -> set[str]:
        # As its own example ends. (Parameters are looked at only if the last step happens to be a
        # multiple of ten, and then against the start alone: a step more would not do it a favour.)
        self.observatory.stop()
        results = self.observatory.report().results
        messages = [m for r in results if r.status.value in _SERIOUS for m in r.warnings]
        return {_phrase(message) for message in messages}


_SERIOUS = ("warning", "critical")


def _phrase(message: str) -> str:
    return next((phrase for phrase in NEURAL_OBSERVATORY if phrase in message), message)


class Trainpulse(Diagnoser):
    """A `Monitor` that is given the loss, the total gradient norm and the learning rate."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.monitor = import_module("trainpulse").Monitor()

    def before_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        parameters = self.training.model.parameters()
        norms = [float(p.grad.float().norm()) for p in parameters if p.grad is not None]
        self.monitor.log("loss", step, loss.item())
        self.monitor.log("grad_norm", step, math.hypot(*norms))
        self.monitor.log("learning_rate", step, self.training.optimizer.param_groups[0]["lr"])

    def said(self) -> set[str]:
        alerts = [a for a in self.monitor.report().alerts if a.severity.value in _SERIOUS]
        return {
            a.message.partition(":")[0] if a.detector == "gradient" else a.detector for a in alerts
        }


class TorchAudit(Diagnoser):
    """`autopatch`, at every step: its default, every 1000th, would see only the first."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        autopatch = import_module("torch_audit").autopatch
        self.auditor = autopatch(training.model, optimizer=training.optimizer, every_n_steps=1)

    def said(self) -> set[str]:
        findings = self.auditor.finish().findings
        self.auditor.unpatch()
        return {f.rule_id for f in findings if f.severity.value != "INFO"}


class Neuraldbg(Diagnoser):
    """`NeuralDbg` around the loop, its step kept, losses given; the edition without the engine."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.debugger = import_module("neuraldbg").NeuralDbg(training.model)
        self.debugger.__enter__()

    def begin_step(self, step: int, turn: Turn) -> None:
        self.debugger.step = step

    def before_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        self.debugger.record_loss(loss.item())

    def said(self) -> set[str]:
        self.debugger.__exit__(None, None, None)
        return set(self.debugger.first_failure_step)


DIAGNOSERS: Mapping[str, Callable[[Training], Diagnoser]] = {
    "torchmortem": Torchmortem,
    "neural-observatory": NeuralObservatory,
    "trainpulse": Trainpulse,
    "torch-audit": TorchAudit,
    "neuraldbg": Neuraldbg,
}

MODULES = {name: name.replace("-", "_") for name in DIAGNOSERS}


def available() -> tuple[dict[str, Callable[[Training], Diagnoser]], dict[str, str]]:
    """Those that can be imported, and why the others cannot."""
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, make in DIAGNOSERS.items():
        try:
            import_module(MODULES[name])
        except ImportError as error:
            missing[name] = str(error)
        else:
            found[name] = make
    return found, missing


def quiet() -> None:
    """Their reports are what counts; what they print on the way is not wanted here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
