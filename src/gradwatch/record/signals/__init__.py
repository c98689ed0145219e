"""What tensor statistics cannot see: activations, probes, inputs, the layer graph, the loss."""

from collections.abc import Collection, Container

from torch import nn

from gradwatch.record.signal import Signal
from gradwatch.record.signals.activations import Activations
from gradwatch.record.signals.compiled_activations import CompiledActivations
from gradwatch.record.signals.hooks import ModelContext, is_compiled, watched_layers
from gradwatch.record.signals.inputs import Inputs
from gradwatch.record.signals.layer_graph import LayerGraph
from gradwatch.record.signals.loss_kind import LossGuess, describe_loss, parts_reached
from gradwatch.record.signals.outputs import Outputs
from gradwatch.record.signals.probe import Probe

__all__ = [
    "Activations",
    "CompiledActivations",
    "Inputs",
    "LayerGraph",
    "LossGuess",
    "ModelContext",
    "Outputs",
    "Probe",
    "describe_loss",
    "make_signals",
    "parts_reached",
]


def make_signals(
    model: nn.Module, names: Collection[str], record: Container[str], *, inputs: bool = True
) -> list[Signal]:
    """The signals of one watched model.

    `names` are the watched parameters; layers none of whose parameters is among them are left out.
    Activations need "activations" in `record`. The caller leaves the word out where the model is
    compiled and nobody asked for it by name, because recording changes compiled arithmetic.
    """
    context = ModelContext(watched_layers(model, names))
    signals: list[Signal] = [
        LayerGraph(model, context),  # first: it puts the layers of the others in order
        *([Inputs(model, context), Outputs(model, context)] if inputs else []),
        Probe(model, context),
        LossGuess(model, context),
    ]
    if "activations" in record:
        kind = CompiledActivations if is_compiled(model) else Activations
        signals.append(kind(model, context))
    return signals
