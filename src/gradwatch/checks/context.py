"""What many checks ask of a run, worked out once: masks, sampled rows, medians, the loss curve.

Checks speak of the finite part of a run; `end` is its length in rows, and everything here
stops there.
"""

from functools import cached_property
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.curve import Curve
from gradwatch.run import Run, Subject
from gradwatch.stats import HAS_VALUE, Family, Stat, entry
from gradwatch.stats.medians import Array, medians, thinned

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]

NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm", "SyncBatchNorm")
LOW_PRECISION = ("bfloat16", "float16", "half")


class CheckContext:
    """Answers about one run that several checks need; computed on first use, then kept."""

    def __init__(self, run: Run) -> None:
        self.steps = run.steps
        self.parameters: tuple[Subject, ...] = run.parameters
        self._rows: dict[Stat, Rows] = {}
        self._late: dict[tuple[Stat, float], Array] = {}
        self._ref = ref(run)  # weak: the run keeps its context, not the other way round

    @property
    def _run(self) -> Run:
        run = self._ref()
        assert run is not None
        return run

    # -- which parameters ------------------------------------------------------------------------

    def _mask(self, values: list[bool]) -> Mask:
        return np.array(values, bool).reshape(len(self.parameters))

    @cached_property
    def trainable(self) -> Mask:
        return self._mask([not p.frozen for p in self.parameters])

    @cached_property
    def matrices(self) -> Mask:
        """Weights with at least two dimensions; a parameter of unknown shape counts as one."""
        return self._mask([len(p.shape) >= 2 or not p.shape for p in self.parameters])

    @cached_property
    def embeddings(self) -> Mask:
        return self._mask([p.module.startswith("Embedding") for p in self.parameters])

    @cached_property
    def norm_gains(self) -> Mask:
        return self._mask(
            [
                any(kind in p.module for kind in NORMS) and p.name.endswith("weight")
                for p in self.parameters
            ]
        )

    @cached_property
    def weights(self) -> Mask:
        """Trainable matrices: the W of the definitions."""
        return self.matrices & self.trainable

    @cached_property
    def low_precision(self) -> Mask:
        return self._mask([any(w in p.dtype for w in LOW_PRECISION) for p in self.parameters])

    @cached_property
    def fan_in(self) -> Array:
        """Inputs per output unit; NaN where that means nothing."""
        return np.array(
            [
                float(np.prod(p.shape[1:])) if len(p.shape) >= 2 and not e else np.nan
                for p, e in zip(self.parameters, self.embeddings, strict=True)
            ]
        )

    @cached_property
    def forward_order(self) -> dict[str, int]:
        """Position of each layer in the forward pass."""
        order = dict(self._run.graph.order)
        for index, layer in enumerate(self._run.layers):
            order.setdefault(layer, len(order) + index)
        return order

    def layer(self, column: int) -> str:
        return self.parameters[column].layer

    def layers(self, columns: NDArray[np.intp] | list[int]) -> tuple[str, ...]:
        """Layers of these parameters, in the given order, each once."""
        return tuple(dict.fromkeys(self.layer(int(column)) for column in columns))

    @cached_property
    def weighty(self) -> frozenset[str]:
        """Layers that own a weight of two or more dimensions."""
        return frozenset(p.layer for p, m in zip(self.parameters, self.matrices, strict=True) if m)

    def is_output(self, layer: str) -> bool:
        """Whether no layer with weights comes after this one."""
        if self._run.graph.assumed or layer not in self._run.graph.order:
            here = self.forward_order.get(layer, -1)
            return not any(self.forward_order.get(other, -1) > here for other in self.weighty)
        return not (self._run.graph.downstream(layer) - {layer}) & self.weighty

    @cached_property
    def output_layer(self) -> str | None:
        """The last layer with weights."""
        layers = [layer for layer in self.weighty if layer in self.forward_order]
        return max(layers, key=self.forward_order.__getitem__) if layers else None

    @cached_property
    def input_layer(self) -> str | None:
        """The first layer with weights."""
        layers = [layer for layer in self.weighty if layer in self.forward_order]
        return min(layers, key=self.forward_order.__getitem__) if layers else None

    # -- which rows ------------------------------------------------------------------------------

    @cached_property
    def skipped(self) -> Mask:
        """Steps a scaler skipped: their gradients are overflow by design."""
        values = self._run.scalars.get("skipped")
        if values is None:
            return np.zeros(len(self.steps), bool)
        found: Mask = np.nan_to_num(values) > 0
        return found

    def bad(self, stat: Stat) -> Mask:
        """Rows in which any subject has a positive count of this kind."""
        if stat not in self._run.recorded:
            return np.zeros(len(self.steps), bool)
        found: Mask = np.any(self._run.series[stat] > 0, axis=1)
        return found

    @cached_property
    def nonfinite_rows(self) -> Mask:
        """Rows in which a loss, gradient, weight or layer output is NaN or Inf.

        Skipped steps do not count, nor outputs that are infinite from the first step on (masks).
        """
        found = self.bad(Stat.GRAD_NAN) | self.bad(Stat.GRAD_INF)
        found &= ~self.skipped
        found |= self.bad(Stat.WEIGHT_NAN) | self.bad(Stat.WEIGHT_INF)
        for name in ("loss_nonfinite", "loss"):
            values = self._run.scalars.get(name)
            if values is not None:
                found |= np.isinf(values) if name == "loss" else np.nan_to_num(values) > 0
        if found.any():  # alone, odd outputs do not end a run
            outputs = self.bad(Stat.PROBE_NONFINITE)
            if len(outputs) and not outputs[0]:
                found |= outputs
        return found

    @cached_property
    def end(self) -> int:
        """Number of rows before the first non-finite one."""
        rows = np.flatnonzero(self.nonfinite_rows)
        return int(rows[0]) if len(rows) else len(self.steps)

    @cached_property
    def _weights_finite_at_end(self) -> bool:
        """Weights are taken before a step: those of the first bad step may still be good."""
        return not any(
            self.bad(stat)[self.end : self.end + 1].any()
            for stat in (Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
        )

    def rows(self, stat: Stat) -> Rows:
        """Rows of the finite part in which anything of this statistic was measured."""
        if stat not in self._rows:
            if stat in self._run.recorded:
                whole = entry(stat).family is Family.WEIGHT and self._weights_finite_at_end
                states = self._run.state(stat)[: self.end + whole]
                self._rows[stat] = np.flatnonzero(HAS_VALUE[states].any(axis=1))
            else:
                self._rows[stat] = np.empty(0, np.intp)
        return self._rows[stat]

    def values(self, stat: Stat, rows: Rows) -> Array:
        taken: Array = self._run.series[stat][rows]
        return taken

    def stride(self, stat: Stat) -> int:
        """Typical distance between two samples, in steps, over the last half."""
        rows = self.rows(stat)
        if len(rows) < 3:
            return 1
        gaps = np.diff(self.steps[rows[len(rows) // 2 :]])
        return max(1, int(np.median(gaps))) if len(gaps) else 1

    def late(self, stat: Stat, part: float = 0.25) -> Array:
        """Each subject's median over the last `part` of the samples (at least five)."""
        key = (stat, part)
        if key not in self._late:
            rows = self.rows(stat)
            tail = rows[-max(5, int(len(rows) * part)) :]
            self._late[key] = medians(self.values(stat, thinned(tail)))
        return self._late[key]

    def whole(self, stat: Stat) -> Array:
        """Each subject's median over the finite part of the run."""
        return self.late(stat, 1.0)

    def first(self, stat: Stat) -> Array:
        """Each subject's first measured value."""
        rows = self.rows(stat)[:64]
        return _edge(self.values(stat, rows))

    def last(self, stat: Stat) -> Array:
        """Each subject's last measured value of the finite part."""
        rows = self.rows(stat)[-64:]
        return _edge(self.values(stat, rows)[::-1])

    # -- curves ----------------------------------------------------------------------------------

    @cached_property
    def loss(self) -> Curve | None:
        return self.curve("loss")

    def curve(self, name: str) -> Curve | None:
        """A scalar's finite values before the run went bad; None when fewer than two."""
        values = self._run.scalars.get(name)
        if values is None:
            return None
        rows = np.flatnonzero(np.isfinite(values[: self.end]))
        if len(rows) < 2:
            return None
        chance = self._run.info.get("chance") if name == "loss" else None
        level = float(chance) if isinstance(chance, int | float) and chance > 0 else None
        return Curve(self.steps[rows], values[rows], level)

    @cached_property
    def total_gradient(self) -> Array:
        """Norm over all parameters for each row; NaN where nothing was measured."""
        norms = self._run.series[Stat.GRAD_NORM][: self.end]
        total = np.sqrt(np.nansum(np.square(norms), axis=1))
        out = np.full(len(norms), np.nan)
        rows = self.rows(Stat.GRAD_NORM)
        out[rows] = total[rows]
        out[self.skipped[: self.end]] = np.nan
        return out

    @cached_property
    def rms_gradient(self) -> Array:
        """Factor that turns a gradient norm into an RMS, per parameter."""
        counts = np.array([max(p.count, 1) for p in self.parameters], float)
        scale: Array = 1 / np.sqrt(counts)
        return scale

    @cached_property
    def gains(self) -> Array:
        """How much each weight amplifies at first: std × √fan-in; 0.5 to 1.5 by usual recipes."""
        if Stat.WEIGHT_STD not in self._run.recorded:
            return np.full(len(self.parameters), np.nan)
        found: Array = self.first(Stat.WEIGHT_STD) * np.sqrt(self.fan_in)
        return found


def _edge(values: Array) -> Array:
    """The first finite value of each column."""
    finite = np.isfinite(values)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    at = finite.argmax(axis=0)
    picked = np.take_along_axis(values, at[None], 0)[0]
    return np.where(finite.any(axis=0), picked, np.nan)


_CONTEXTS: "WeakKeyDictionary[Run, CheckContext]" = WeakKeyDictionary()


def context(run: Run) -> CheckContext:
    """The context of a run, kept while the run lives."""
    ctx = _CONTEXTS.get(run)
    if ctx is None:
        ctx = _CONTEXTS[run] = CheckContext(run)
    return ctx
