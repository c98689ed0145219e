"""An accelerator that is none: everything done as on one, with CPU tensors."""

from typing import Any

import pytest
from torch import Tensor

from gradwatch.record.device.transfer import Transfer
from gradwatch.record.recorder import Recorder

DELAY = 2
"""Ends of steps at which a number sent before has not arrived yet."""


def pretend_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.record.parameters.on_accelerator", lambda tensor: True)
    monkeypatch.setattr("gradwatch.record.signals.tensors.on_accelerator", _is_real)
    for module in ("probe", "inputs", "activations", "activation_functions", "loss_kind"):
        monkeypatch.setattr(f"gradwatch.record.signals.{module}.readable", lambda tensor: False)
    turns = 0
    first, born = Recorder.deliver, Transfer.__init__

    def deliver(self: Recorder, *, wait: bool = False) -> None:
        nonlocal turns
        turns += 1
        first(self, wait=wait)

    def send(self: Any, parts: Any) -> None:
        born(self, parts)
        self.due = turns + DELAY

    monkeypatch.setattr(Recorder, "deliver", deliver)
    monkeypatch.setattr(Transfer, "__init__", send)
    monkeypatch.setattr(Transfer, "arrived", property(lambda self: turns > self.due))


def _is_real(tensor: Tensor) -> bool:
    return not tensor.is_meta
