"""Activations under torch.compile, for those who ask: the hooks become part of the compiled graph.

They write into plain tensors of their own, which costs no graph break; but the graph is another
one, and its arithmetic can differ in the last bits (in bfloat16 visibly). That is why they are off
unless asked for.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradwatch.record.instrument import Reading
from gradwatch.record.signals.hooks import Stage
from gradwatch.record.signals.modules import layers, subject
from gradwatch.run import Event, Subject
from gradwatch.stats import Family, State, row_dtype

_STATS = ("count", "mean", "std", "abs_max", "zero_fraction", "nonfinite")


class Tap:
    """Keeps the statistics of the last output; pickled or copied it becomes nothing."""

    def __init__(self) -> None:
        self.kept = torch.zeros(len(_STATS), dtype=torch.float64)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not isinstance(output, torch.Tensor) or not torch.is_grad_enabled():
            return
        with torch.no_grad():
            values = output.detach().to(torch.float64)
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

    def attach(self) -> None:
        model = self._model()
        for layer in layers(model, self._names) if model is not None else ():
            if (module := layer.module) is not None:
                tap = Tap()
                self._taps[layer.name] = layer.kind, tap
                self._handles.append(module.register_forward_hook(tap))

    def arm(self, step: int, due: frozenset[Family]) -> None:
        self._due = Family.ACT in due
        if self._due:
            for _, tap in self._taps.values():
                tap.kept[0] = 0.0

    def collect(self, step: int) -> Iterator[Reading]:
        if not self._due:
            return
        seen = {name: (kind, tap) for name, (kind, tap) in self._taps.items() if tap.kept[0] > 0}
        rows = np.zeros(len(seen), row_dtype(Family.ACT))
        subjects: list[Subject] = []
        for row, (name, (kind, tap)) in zip(rows, seen.items(), strict=True):
            for stat, value in zip(_STATS, tap.kept.numpy(), strict=True):
                row[f"act_{stat}"] = value
            for stat in ("act_gate_zero_fraction", "act_flat_fraction", "act_entropy"):
                row[stat] = np.nan
            subjects.append(subject(name, kind, self._stage.order.get(name)))
        if subjects:
            yield Family.ACT, subjects, rows, np.full(len(rows), State.MEASURED, np.uint8)

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def events(self) -> list[Event]:
        return []

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
