"""What tensor statistics cannot see: activations, gates, probes, inputs, layer graph, loss."""

from collections.abc import Collection, Container

from torch import nn

from gradwatch.record.instrument import Instrument
from gradwatch.record.signals.activations import Activations
from gradwatch.record.signals.audit import audit, audit_events
from gradwatch.record.signals.batches import Batches
from gradwatch.record.signals.compiled import CompiledActivations
from gradwatch.record.signals.hooks import Stage
from gradwatch.record.signals.inputs import Inputs
from gradwatch.record.signals.layer_graph import LayerGraph
from gradwatch.record.signals.loss_guess import LossGuess
from gradwatch.record.signals.loss_kind import describe_loss
from gradwatch.record.signals.modules import wholly_compiled
from gradwatch.record.signals.probe import Probe

__all__ = [
    "Activations",
    "Batches",
    "CompiledActivations",
    "Inputs",
    "LayerGraph",
    "LossGuess",
    "Probe",
    "Stage",
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
    Activations need "activations" in `record`. The caller leaves the word out where the model is
    compiled and nobody asked for it by name, because recording changes compiled arithmetic.
    """
    stage = Stage()
    found: list[Instrument] = [
        LayerGraph(model, stage),  # first: it puts the layers of the others in order
        Inputs(model, stage),
        Probe(model, names, stage),
        LossGuess(model, stage),
    ]
    if "activations" in record:
        asked = wholly_compiled(model)
        found.append((CompiledActivations if asked else Activations)(model, names, stage))
    return found
