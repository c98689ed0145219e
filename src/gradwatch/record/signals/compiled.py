"""Activations under torch.compile, for those who ask: the hooks become part of the compiled graph.

They write into plain tensors of their own, which costs no graph break; but the graph is another
one, and its arithmetic can differ in the last bits (in bfloat16 visibly). That is why they are off
unless asked for.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradwatch.record.far.arithmetic import wide
from gradwatch.record.instrument import Departure, Found, Reading
from gradwatch.record.signals.hooks import Stage
from gradwatch.record.signals.modules import layers, subject
from gradwatch.run import Event
from gradwatch.stats import Family, State, row_dtype

_STATS = ("count", "mean", "std", "abs_max", "zero_fraction", "nonfinite")


class Tap:
    """Keeps the statistics of the last output; pickled or copied it becomes nothing."""

    def __init__(self, device: torch.device) -> None:
        self.kept = torch.zeros(len(_STATS), dtype=wide(device), device=device)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not isinstance(output, torch.Tensor) or not torch.is_grad_enabled():
            return
        with torch.no_grad():
            values = output.detach().to(self.kept.dtype)
            finite = torch.isfinite(values)
            count = finite.sum()
            plain = torch.where(finite, values, 0.0)
            mean = plain.sum() / count
            squares = torch.where(finite, (plain - mean) ** 2, 0.0).sum() / count
            self.kept.copy_(
                torch.stack(
                    [
                        count * 0 + values.numel(),
                        mean,
                        squares.sqrt(),
                        plain.abs().max(),
                        (values == 0).sum() / values.numel(),
                        values.numel() - count,
                    ]
                )
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class CompiledActivations:
    """Statistics of the outputs of the layers of a model that is compiled; no gates.

    The hooks must be there before the first compiled call, so they stay from `attach` to `detach`.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Collection[str] = (),
        stage: Stage | None = None,
    ) -> None:
        self._model = ref(model)
        self._names = names
        self._stage = stage or Stage()
        self._taps: dict[str, tuple[str, Tap]] = {}
        self._handles: list[RemovableHandle] = []
        self._due = False
        self._departures: list[Departure] = []

    def attach(self) -> None:
        model = self._model()
        if model is None:
            return
        for layer in layers(model, self._names):
            if (module := layer.module) is not None:
                tap = Tap(_home(module, model))
                self._taps[layer.name] = layer.kind, tap
                self._handles.append(module.register_forward_hook(tap))

    def arm(self, step: int, due: frozenset[Family]) -> None:
        self._due = Family.ACT in due
        if self._due:
            for _, tap in self._taps.values():
                tap.kept[0] = 0.0

    def collect(self, step: int) -> Iterator[Reading]:
        if not self._due or not self._taps:
            return
        kept = [tap.kept for _, tap in self._taps.values()]
        if all(one.is_cpu for one in kept):
            yield from self._readings([one.numpy() for one in kept])
        else:
            self._departures.append(Departure(kept, lambda arrived: Found(self._readings(arrived))))

    def departures(self, step: int) -> list[Departure]:
        """What the taps on accelerators have kept."""
        sent, self._departures = self._departures, []
        return sent

    def _readings(self, kept: Sequence[NDArray[Any]]) -> list[Reading]:
        """Of the layers that ran."""
        seen = [
            (name, kind, numbers)
            for (name, (kind, _)), numbers in zip(self._taps.items(), kept, strict=True)
            if numbers[0] > 0
        ]
        if not seen:
            return []
        rows = np.zeros(len(seen), row_dtype(Family.ACT))
        for row, (_, _, numbers) in zip(rows, seen, strict=True):
            for stat, value in zip(_STATS, numbers, strict=True):
                row[f"act_{stat}"] = value
            for stat in ("act_gate_zero_fraction", "act_flat_fraction", "act_entropy"):
                row[stat] = np.nan
        order = self._stage.order
        subjects = [subject(name, kind, order.get(name)) for name, kind, _ in seen]
        return [(Family.ACT, subjects, rows, np.full(len(rows), State.MEASURED, np.uint8))]

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def events(self) -> list[Event]:
        return []

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _home(module: nn.Module, model: nn.Module) -> torch.device:
    """Where the module's output will be: reading it from elsewhere would be a wait."""
    for where in (module, model):
        if (parameter := next(where.parameters(), None)) is not None:
            return parameter.device
    return torch.device("cpu")
