"""What tensor statistics cannot see: activations, gates, probes, inputs, layer graph, loss."""

from collections.abc import Collection, Container

from torch import nn

from gradwatch.record.instrument import Instrument
from gradwatch.record.signals.activations import Activations
from gradwatch.record.signals.audit import audit, audit_events
from gradwatch.record.signals.inputs import Inputs
from gradwatch.record.signals.layer_graph import LayerGraph
from gradwatch.record.signals.loss_guess import LossGuess
from gradwatch.record.signals.loss_kind import describe_loss
from gradwatch.record.signals.probe import Probe

__all__ = [
    "Activations",
    "Inputs",
    "LayerGraph",
    "LossGuess",
    "Probe",
    "audit",
    "audit_events",
    "describe_loss",
    "instruments",
]


def instruments(
    model: nn.Module, names: Collection[str], record: Container[str]
) -> list[Instrument]:
    """The instruments of one watched model.

    `names` are the watched parameters; layers none of whose parameters is among them are left out.
    Activations are left out unless `record` holds "activations".
    """
    order: dict[str, int] = {}
    found: list[Instrument] = [
        LayerGraph(model, order),  # first: it puts the layers of the others in order
        Inputs(model),
        Probe(model, names, order),
        LossGuess(model),
    ]
    if "activations" in record:
        found.append(Activations(model, names, order))
    return found
