"""Activations under torch.compile, for those who ask: the hooks become part of the compiled graph.

They write into plain tensors of their own, which costs no graph break; but the graph is another
one, and its arithmetic can differ in the last bits (in bfloat16 visibly). That is why they are off
unless asked for.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.device.torch_engine import output_sums
from gradwatch.record.device.transfer import wide
from gradwatch.record.rows import PendingRows, Reading, ReadyRows
from gradwatch.record.signals.activations import act_rows, record_of
from gradwatch.record.signals.hooks import HookedSignal, ModelContext, PicklesAsNothing, layers
from gradwatch.stats import Family, State


class CompiledHook(PicklesAsNothing):
    """Keeps the count and the sums of the last output."""

    def __init__(self, device: torch.device) -> None:
        self.kept = torch.zeros(6, dtype=wide(device), device=device)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Traced into the compiled graph: statistics of the output, into a fixed tensor."""
        # Decided while tracing: torch.compile makes a graph of its own where gradients are off.
        if not isinstance(output, Tensor) or not torch.is_grad_enabled():
            return
        with torch.no_grad():
            sums = output_sums(output.detach())
            # The count is a tensor, even where the shape is dynamic.
            self.kept.copy_(torch.cat([sums[:1] * 0 + output.numel(), sums]))


class CompiledActivations(HookedSignal):
    """Statistics of the outputs of the layers of a compiled model; no activation functions.

    The hooks must be there before the first compiled call, so they stay from `attach` to `detach`.
    """

    what = "activations"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._hooks: dict[str, tuple[str, CompiledHook]] = {}
        self._due = False

    def attach(self) -> None:
        """Put a hook on every layer; it must be there before the model is compiled."""
        model = self._model()
        if model is None:
            return
        for layer in layers(model, self.context.watched):
            if (module := layer.module) is not None:
                hook = CompiledHook(_device_of(module, model))
                self._hooks[layer.name] = layer.kind, hook
                self._handles.append(module.register_forward_hook(hook))

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Mark every layer as not having run on this step."""
        self._due = Family.ACT in due
        if self._due:
            for _, hook in self._hooks.values():
                hook.kept[0] = 0.0  # a count of zero: this layer has not run

    def collect(self, step: int) -> Iterator[Reading]:
        """What the hooks kept; from a device it is sent for."""
        if not self._due or not self._hooks:
            return
        kept = [hook.kept for _, hook in self._hooks.values()]
        if all(numbers.is_cpu for numbers in kept):
            yield from self._readings([numbers.numpy() for numbers in kept])
        else:
            self._pending.append(
                PendingRows(kept, lambda arrived: ReadyRows(self._readings(arrived)))
            )

    def _readings(self, kept: Sequence[NDArray[Any]]) -> list[Reading]:
        """Of the layers that ran."""
        ran = {
            name: record_of(int(count), int(count), sums)
            for name, (count, *sums) in zip(self._hooks, map(np.ndarray.tolist, kept), strict=True)
            if count > 0
        }
        if not ran:
            return []
        subjects = [self.context.subject(name, self._hooks[name][0]) for name in ran]
        rows = act_rows(list(ran.values()))
        return [(Family.ACT, subjects, rows, np.full(len(rows), State.MEASURED, np.uint8))]


def _device_of(module: nn.Module, model: nn.Module) -> torch.device:
    """Where the module's output will be: reading it from elsewhere would be a wait."""
    for owner in (module, model):
        if (parameter := next(owner.parameters(), None)) is not None:
            return parameter.device
    return torch.device("cpu")
