"""What the optimizers were given, held against what the model has."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gradwatch.record.naming import named_parameters
from gradwatch.run import Event, EventKind

_SENTENCES = {
    "unknown_to_optimizers": "{n} trainable parameters are in no optimizer and will never change: "
    "{names}",
    "in_no_watched_module": "{n} parameters of the optimizer are in no watched module: {names}. "
    "Was the model copied or rebuilt after the optimizer was made?",
    "frozen_but_handed_over": "{n} parameters are frozen but were handed to an optimizer: {names}",
}
_SHOWN = 3


def audit(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, list[str]]:
    """Parameters no optimizer knows, optimizer parameters of no watched module, frozen ones."""
    held = {
        id(parameter): f"group {number}, parameter {place} {tuple(parameter.shape)}"
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }
    names = {
        id(tensor): (named.name, tensor.requires_grad)
        for named in named_parameters(model)
        if (tensor := named.ref()) is not None
    }
    return {
        "unknown_to_optimizers": [
            name for key, (name, trainable) in names.items() if trainable and key not in held
        ],
        "in_no_watched_module": [text for key, text in held.items() if key not in names],
        "frozen_but_handed_over": [
            name for key, (name, trainable) in names.items() if not trainable and key in held
        ],
    }


def audit_events(report: dict[str, list[str]], step: int) -> list[Event]:
    """One event for each kind of trouble in the report."""
    events = []
    for key, sentence in _SENTENCES.items():
        if names := report.get(key):
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            text = sentence.format(n=len(names), names=", ".join(names[:_SHOWN]) + more)
            data: dict[str, Any] = {"what": key, "names": names}
            events.append(Event(step, EventKind.AUDIT, text, data=data))
    return events
