"""Which engine measures on a device: Triton's where it has proved itself there, else torch's.

Triton's kernels are compiled in a thread while torch's operations measure. Then they are run once
on made tensors and held against the CPU kernel (`proof`); only an engine without a difference is
trusted. GRADWATCH_DEVICE_ENGINE=triton or torch forces one, also for tensors on the CPU.
"""

import importlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import ModuleType

import torch
from torch import Tensor

from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.proof import NumberCheck, send_proof
from gradwatch.record.device.torch_engine import TorchEngine
from gradwatch.record.device.transfer import Transfer
from gradwatch.record.options import usage_error

VARIABLE = "GRADWATCH_DEVICE_ENGINE"
TRITON, TORCH = "triton", "torch"
OLDEST_TRITON = (3, 2)
"""Older ones cannot make a pointer of a number."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What Triton's kernels read; others are torch's."""
DEVICES = ("cuda", "xpu")
"""Kinds of devices Triton compiles for."""

Report = Callable[[torch.device, str, str], None]
"""Told which engine measures on a device from now on, and why no better one does."""


def forced() -> str | None:
    """The engine the environment asks for; GradwatchError where there is no such engine."""
    name = os.environ.get(VARIABLE, "").lower() or None
    if name not in (None, TRITON, TORCH):
        raise usage_error(f"{VARIABLE} must be {TRITON} or {TORCH}, got {name!r}.")
    return name


def check_forced(tensors: Iterable[Tensor]) -> None:
    """Where an engine is forced, try it on the devices of these tensors; GradwatchError if not."""
    if forced() != TRITON:
        return  # an unknown name is refused by `forced`, and torch's can be had everywhere
    for device, dtype in {(t.device, t.dtype) for t in tensors if t.dtype in _TYPES}:
        trial = _trial(device, dtype)
        trial.finish()
        if trial.stage is not Stage.TRUSTED:
            raise usage_error(
                f"{VARIABLE} asks for {TRITON}, which cannot be had on {device}: {trial.reason}. "
                f"Unset it, or set it to {TORCH}."
            )


def trusted_engine(device: torch.device, dtype: torch.dtype) -> Engine | None:
    """Triton's, where it is trusted by now with numbers of this type on this device."""
    trial = _trials.get((device, dtype))
    return trial.engine if trial is not None and trial.stage is Stage.TRUSTED else None


class ChosenEngine(Engine):
    """Passes everything on to the best engine that is trusted by now."""

    name = "chosen"

    def __init__(self, device: torch.device, report: Report) -> None:
        self._device = device
        self._report = report
        self._torch = TorchEngine(device)
        self._best: Engine = self._torch
        self._copied_by: Engine = self._torch
        self._said: tuple[str, str] | None = None

    def measure(
        self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        """With the engine that is chosen now; the others of this step keep to it."""
        self._choose({tensor.dtype for tensor in tensors if tensor is not None})
        return self._best.measure(tensors, places, wanted)

    def snapshot(self, tensors: Sequence[Tensor | None]) -> Snapshot:
        """By the engine of this step, which alone knows the order of what it copies."""
        self._copied_by = self._best
        return self._best.snapshot(tensors)

    def step(
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> Sent[DeviceSteps]:
        """By the engine that made the snapshot."""
        engine = self._best if before is None else self._copied_by
        return engine.step(before, after, gradients, divisors)

    def output(self, tensor: Tensor) -> Tensor:
        """By the engine of the last step."""
        return self._best.output(tensor)

    def _choose(self, dtypes: set[torch.dtype]) -> None:
        trusted, reason, asked = False, "", forced()
        if asked == TRITON or (asked is None and self._device.type in DEVICES):
            trials = [_trial(self._device, dtype) for dtype in _TYPES if dtype in dtypes]
            for trial in trials:
                trial.advance()
            trusted = bool(trials) and all(trial.stage is Stage.TRUSTED for trial in trials)
            reason = next((t.reason for t in trials if t.stage is Stage.REFUSED), "")
        if trusted and self._best is self._torch:
            self._best = triton_engine(self._torch)
        elif not trusted:
            self._best = self._torch
        said = self._best.name, reason
        if said != self._said:
            self._said = said
            self._report(self._device, *said)


class Stage(Enum):
    """How far the trial of Triton's kernels has come."""

    COMPILING = "compiling"
    COMPILED = "compiled"
    PROVING = "proving"
    TRUSTED = "trusted"
    REFUSED = "refused"


class EngineTrial:
    """Whether Triton's kernels measure one type of numbers on one device as the CPU kernel does."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self.stage = Stage.COMPILING
        self.reason = hindrance(device)
        self.engine: Engine | None = None
        self._proof: Sent[list[NumberCheck]] | None = None
        self._transfer: Transfer | None = None
        self._thread = threading.Thread(
            target=self._compile, name="gradwatch compiles", daemon=True
        )
        if self.reason:
            self.stage = Stage.REFUSED
        else:
            self._thread.start()

    def advance(self) -> None:
        """Go on as far as one can without waiting; called from the training's thread."""
        if self.stage is Stage.COMPILED:
            self.engine = triton_engine(TorchEngine(self._device))
            self._proof = send_proof(self.engine, self._device, [self._dtype])
            self._transfer = Transfer(self._proof.parts)
            self.stage = Stage.PROVING
        if self._transfer is not None and self._transfer.arrived:
            self._judge()

    def finish(self) -> None:
        """Go on to the end, waiting where need be."""
        if self._thread.ident is not None:
            self._thread.join()
        self.advance()
        if self._transfer is not None:
            self._transfer.wait()
            self._judge()

    def _compile(self) -> None:
        # Whatever a compiler says: then torch's operations measure, and the run says why.
        try:
            warm_up(self._device, [self._dtype])
        except Exception as error:
            self._refuse(f"its kernels do not compile ({type(error).__name__}: {error})")
        else:
            self.stage = Stage.COMPILED

    def _judge(self) -> None:
        assert self._proof is not None
        assert self._transfer is not None
        wrong = [check for check in self._proof.finish(self._transfer.parts()) if not check.ok]
        self._proof = self._transfer = None
        if wrong:
            worst = ", ".join(f"{c.name} by {c.max_relative_error:.1e}" for c in wrong[:3])
            self._refuse(f"its numbers differ from the CPU's: {worst}")
        else:
            self.stage = Stage.TRUSTED

    def _refuse(self, reason: str) -> None:
        self.reason, self.stage = reason, Stage.REFUSED


_trials: dict[tuple[torch.device, torch.dtype], EngineTrial] = {}


def _trial(device: torch.device, dtype: torch.dtype) -> EngineTrial:
    """One per process, device and type: its outcome holds for every watcher."""
    if (device, dtype) not in _trials:
        _trials[device, dtype] = EngineTrial(device, dtype)
    return _trials[device, dtype]


def forget_trials() -> None:
    """Try every device anew; in a forked child too, where the compiling thread is gone."""
    _trials.clear()


def hindrance(device: torch.device) -> str:
    """Why Triton need not even be tried; "" where it can be."""
    try:
        version = importlib.import_module("triton").__version__
    except ImportError:
        return "triton is not installed"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRITON:
        return f"triton {version} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "on a CPU it needs TRITON_INTERPRET=1, set before Python starts"
    if device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64:
        return "the device has no float64"
    return ""


def triton_engine(fallback: Engine) -> Engine:
    """Triton's, with another for the tensors it cannot read; where there is no `hindrance`."""
    engine: Engine = _triton().TritonEngine(fallback)
    return engine


def warm_up(device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
    """Compile Triton's kernels; takes seconds, unless an earlier run has left them on disk."""
    _triton().warm_up(device, dtypes)


def _triton() -> ModuleType:
    """Imported when it is needed: triton is no dependency of ours."""
    return importlib.import_module("gradwatch.record.device.triton_engine")
