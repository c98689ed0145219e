"""What many checks need of a run, computed once: masks, sampled rows, medians, the loss curve.

Checks judge the finite part of a run; `end` is its length in rows, and everything here stops
there. A column is a parameter's place in the run, a row is a step's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.logged import held_out_losses, level_says_nothing, losses
from gradwatch.run import Run, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat
from gradwatch.stats.medians import Array, medians, thinned


@dataclass(frozen=True)
class Curve:
    """A scalar where it was logged and finite. `chance` is the best constant predictor's loss."""

    steps: NDArray[np.int64]
    values: Array
    chance: float | None = None
    name: str = "loss"

    @property
    def called(self) -> str:
        """As a sentence calls it."""
        return "the loss" if self.name == "loss" else self.name

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def start(self) -> float:
        """The first value, or the median of the first three if that is lower (one odd batch)."""
        return float(min(self.values[0], np.median(self.values[:3])))

    @cached_property
    def late(self) -> float:
        """Median of the last tenth, at least five values or, of few, half of them."""
        part = max(min(5, (len(self) + 1) // 2), len(self) // 10)
        return float(np.median(self.values[-part:]))

    @cached_property
    def smooth(self) -> Array:
        """Medians of up to twenty stretches of the run."""
        parts = np.array_split(self.values, min(20, max(1, len(self) // 3)))
        return np.array([np.median(part) for part in parts])

    @cached_property
    def reference(self) -> float:
        """Where a network that knows nothing stands: chance where it is known, else the start."""
        return self.start if self.chance is None else min(self.start, self.chance)

    @cached_property
    def scatter(self) -> float:
        """By how much a value typically differs from the one before it."""
        return float(np.median(np.abs(np.diff(self.values))))

    @cached_property
    def below_zero(self) -> bool:
        """It falls below zero (a likelihood): zero is no floor, and no level is known to be low."""
        return bool(self.smooth.min() < 0)

    @cached_property
    def progress(self) -> float:
        """Share of the starting level that has gone; negative when the loss rose.

        Below zero, where there is no such share, the part of the fall that is no scatter.
        """
        fell = self.start - self.late
        whole = abs(fell) + 3 * self.scatter if self.below_zero else abs(self.start)
        return fell / max(whole, 1e-30)

    @cached_property
    def trained_before(self) -> bool:
        """The start is far below chance: fine-tuning, where little is left to gain."""
        return self.chance is not None and self.start < 0.7 * self.chance

    @cached_property
    def converged(self) -> bool:
        """Most of the loss is gone: what remains may well be the floor."""
        return self.progress >= 0.75 if self.below_zero else self.late <= 0.25 * self.reference

    def gain(self, part: float) -> float:
        """Relative fall within the last `part` of the run, from the medians of its two halves."""
        tail = self.values[-max(4, int(len(self) * part)) :]
        half = len(tail) // 2
        first, second = float(np.median(tail[:half])), float(np.median(tail[half:]))
        travelled = float(np.ptp(self.smooth)) if self.below_zero else 0.0
        return (first - second) / max(abs(first), travelled, 1e-30)


Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]

NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm", "SyncBatchNorm")
BLOCK = 1 << 21
"""Values that are copied together."""
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
    def run(self) -> Run:
        """The run itself, which outlives its context."""
        run = self._ref()
        assert run is not None
        return run

    # -- which parameters ------------------------------------------------------------------------

    def _mask(self, values: list[bool]) -> Mask:
        return np.array(values, bool).reshape(len(self.parameters))

    @cached_property
    def trainable(self) -> Mask:
        """Parameters that are not frozen."""
        return self._mask([not p.frozen for p in self.parameters])

    @cached_property
    def matrices(self) -> Mask:
        """Weights with at least two dimensions; a parameter of unknown shape counts as one."""
        return self._mask([len(p.shape) >= 2 or not p.shape for p in self.parameters])

    @cached_property
    def embeddings(self) -> Mask:
        """Weights of embedding layers, of which a step touches only some rows."""
        return self._mask([p.module.startswith("Embedding") for p in self.parameters])

    @cached_property
    def norm_gains(self) -> Mask:
        """The gains (not the biases) of normalisation layers."""
        named = [p.name.endswith("weight") for p in self.parameters]
        norms = [any(kind in p.module for kind in NORMS) for p in self.parameters]
        return self._mask(named) & self._mask(norms)

    @cached_property
    def weights(self) -> Mask:
        """Trainable matrices: the W of the definitions."""
        return self.matrices & self.trainable

    @cached_property
    def several_rows(self) -> Mask:
        """Matrices of known shape with more than one row."""
        return self._mask([len(p.shape) >= 2 and p.shape[0] > 1 for p in self.parameters])

    @cached_property
    def low_precision(self) -> Mask:
        """Parameters stored in 16 bits."""
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
        order = dict(self.run.graph.order)
        for index, layer in enumerate(self.run.layers):
            order.setdefault(layer, len(order) + index)
        return order

    def layer(self, column: int | np.intp) -> str:
        """The layer that owns the parameter in this column."""
        return self.parameters[column].layer

    def layers(self, columns: Rows | list[int]) -> tuple[str, ...]:
        """Layers of these parameters, in the given order, each once."""
        return tuple(dict.fromkeys(self.layer(column) for column in columns))

    @cached_property
    def layer_names(self) -> list[str]:
        """The columns of statistics that belong to layers instead of parameters."""
        return [subject.name for subject in self.run.by_kind[Kind.LAYER]]

    def position(self, layer: str) -> int:
        """Place in the forward pass; unknown layers come last."""
        return self.forward_order.get(layer, 1 << 30)

    def in_forward_order(self, mask: Mask) -> list[int]:
        """The columns of a mask, in the order in which the forward pass meets their layers."""
        columns: list[int] = np.flatnonzero(mask).tolist()
        return sorted(columns, key=lambda column: self.position(self.layer(column)))

    @cached_property
    def layers_with_weights(self) -> list[str]:
        """Layers that own a weight of two or more dimensions, in forward order."""
        return sorted(self.layers(np.flatnonzero(self.matrices)), key=self.position)

    def is_output(self, layer: str) -> bool:
        """Whether no layer with weights comes after this one."""
        if self.run.graph.assumed or layer not in self.run.graph.order:
            last = self.position(self.layers_with_weights[-1]) if self.layers_with_weights else -1
            return last <= self.forward_order.get(layer, -1)
        weights = set(self.layers_with_weights) - {layer}
        return not any(after in weights for after in self.run.graph.after(layer))

    @property
    def input_layer(self) -> tuple[str, ...]:
        """The first layer with weights, if there is one."""
        return tuple(self.layers_with_weights[:1])

    @property
    def output_layer(self) -> tuple[str, ...]:
        """The last layer with weights, if there is one."""
        return tuple(self.layers_with_weights[-1:])

    # -- which rows ------------------------------------------------------------------------------

    @cached_property
    def skipped(self) -> Mask:
        """Steps a scaler skipped: their gradients are overflow by design."""
        values = self.run.scalars.get("skipped")
        if values is None:
            return np.zeros(len(self.steps), bool)
        return np.asarray(np.nan_to_num(values) > 0, bool)

    def nowhere(self, kind: Kind) -> Mask:
        """A truth value for every row and subject of a kind, false."""
        return np.zeros((len(self.steps), len(self.run.by_kind[kind])), bool)

    def counted(self, *stats: Stat) -> Mask:
        """Where any of these counters is above zero, [row, column]."""
        cells = self.nowhere(stats[0].kind)
        for stat in stats:
            rows = self.run.sampled(stat)
            cells[rows] |= self.values(stat, rows) > 0
        return cells

    def bad(self, *stats: Stat) -> Mask:
        """Rows in which any subject has a positive count of any of these statistics."""
        marks = np.zeros(len(self.steps), bool)
        for stat in stats:
            rows = self.run.sampled(stat)
            marks[rows] |= (self.values(stat, rows) > 0).any(axis=1)
        return marks

    @cached_property
    def nonfinite_rows(self) -> Mask:
        """Rows in which a loss, gradient, weight or layer output is NaN or Inf.

        Skipped steps do not count, nor outputs that are infinite from the first step on (masks).
        """
        rows = self.bad(Stat.GRAD_NAN, Stat.GRAD_INF) & ~self.skipped
        rows |= self.bad(Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
        if "loss_nonfinite" in self.run.scalars:
            rows |= np.nan_to_num(self.run.scalars["loss_nonfinite"]) > 0
        if "loss" in self.run.scalars:  # NaN there also means "not logged on this step"
            rows |= np.isinf(self.run.scalars["loss"])
        if rows.any():  # alone, odd outputs do not end a run
            outputs = self.bad(Stat.PROBE_NONFINITE)
            if len(outputs) and not outputs[0]:
                rows |= outputs
        return rows

    @cached_property
    def end(self) -> int:
        """Number of rows before the first non-finite one."""
        rows = np.flatnonzero(self.nonfinite_rows)
        return int(rows[0]) if len(rows) else len(self.steps)

    @property
    def non_finite_since(self) -> int | None:
        """The first step that is not finite; None where all are."""
        return int(self.steps[self.end]) if self.went_bad else None

    @property
    def went_bad(self) -> bool:
        """Whether the run has a part that is not finite."""
        return self.end < len(self.steps)

    @cached_property
    def _weights_finite_at_end(self) -> bool:
        """Weights are taken before a step: those of the first bad step may still be good."""
        bad = self.bad(Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
        return not bad[self.end : self.end + 1].any()

    def rows(self, stat: Stat) -> Rows:
        """Rows of the finite part in which anything of this statistic was measured."""
        if stat not in self._rows:
            if stat in self.run.recorded:
                one_more = stat.family is Family.WEIGHT and self._weights_finite_at_end
                rows = self.run.sampled(stat)
                rows = rows[: np.searchsorted(rows, self.end + one_more)]
                states = self.run.states_at(stat, rows)
                if states.any():  # else everything is measured, as nearly always: no second look
                    rows = rows[HAS_VALUE[states].any(axis=1)]
                self._rows[stat] = rows
            else:
                self._rows[stat] = np.empty(0, np.intp)
        return self._rows[stat]

    def values(self, stat: Stat, rows: Rows) -> Array:
        """One statistic on these rows only, [row, column], for the caller to change."""
        taken = self.run.at(stat, rows)
        return taken if taken.flags.writeable else taken.copy()

    def blocks(self, stat: Stat, rows: Rows) -> Iterator[tuple[int, Array]]:
        """The same in blocks, each with the place of its first row: long runs in little memory."""
        size = max(1, BLOCK // max(len(self.parameters), 1))
        for begin in range(0, len(rows), size):
            yield begin, self.values(stat, rows[begin : begin + size])

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

    def late_half(self, stat: Stat, judged: Mask) -> Array:
        """Each judged parameter's median over the second half; 0 for others and unknown ones."""
        return np.where(judged, np.nan_to_num(self.late(stat, 0.5)), 0.0)

    def typical(self, stat: Stat, part: float) -> float | None:
        """The median over all weights of `late`; None where nothing was measured."""
        if stat not in self.run.recorded:
            return None
        values = self.late(stat, part)[self.weights]
        return float(np.nanmedian(values)) if np.isfinite(values).any() else None

    def beside_usual(
        self, stat: Stat, first: int, last: int, *, window: int, least: int
    ) -> tuple[Rows, Array] | None:
        """Rows of the steps `first` to `last`, and each subject's usual value before them.

        That is its median over `window` samples; None where these are fewer than `least`, or where
        nothing was measured between the two steps.
        """
        rows = self.rows(stat)
        steps = self.steps[rows]
        near, before = rows[(steps >= first) & (steps <= last)], rows[steps < first][-window:]
        if not len(near) or len(before) < least:
            return None
        return near, medians(self.values(stat, before))

    def first(self, stat: Stat) -> Array:
        """Each subject's first measured value."""
        rows = self.rows(stat)[:64]  # far enough for subjects that a few first samples lack
        return _edge(self.values(stat, rows))

    def last(self, stat: Stat) -> Array:
        """Each subject's last measured value of the finite part."""
        rows = self.rows(stat)[-64:]
        return _edge(self.values(stat, rows)[::-1])

    # -- curves ----------------------------------------------------------------------------------

    @cached_property
    def losses(self) -> tuple[Curve, ...]:
        """The losses of the training: the one that stands for all, else each of several."""
        curves = map(self.curve, losses(self.run.scalars))
        return tuple(curve for curve in curves if curve is not None)

    @cached_property
    def loss(self) -> Curve | None:
        """The training's loss; None where fewer than two values were logged, or several losses."""
        return self.losses[0] if len(self.losses) == 1 else None

    @cached_property
    def no_level(self) -> dict[str, str]:
        """Losses whose level says nothing (of a policy, of an opponent), each with the reason."""
        reasons = {
            loss.name: level_says_nothing(self.run.info, self.run.scalars, loss.name, loss.values)
            for loss in self.losses
        }
        return {name: reason for name, reason in reasons.items() if reason}

    @cached_property
    def judged(self) -> tuple[Curve, ...]:
        """The losses whose level counts: they may be compared with their start."""
        return tuple(loss for loss in self.losses if loss.name not in self.no_level)

    @cached_property
    def level(self) -> Curve | None:
        """The training's loss where its level counts."""
        return self.loss if self.judged else None

    @cached_property
    def validation(self) -> Curve | None:
        """The loss on data that is not trained on, by whatever name it was logged."""
        found = map(self.curve, held_out_losses(self.run.scalars))
        return next((curve for curve in found if curve is not None), None)

    def curve(self, name: str) -> Curve | None:
        """A scalar's finite values before the run went bad; None when fewer than two."""
        values = self.run.scalars.get(name)
        if values is None:
            return None
        rows = np.flatnonzero(np.isfinite(values[: self.end]))
        if len(rows) < 2:
            return None
        curve = Curve(self.steps[rows], values[rows], None, name)
        return replace(curve, chance=self._chance(curve)) if name in ("loss", "val_loss") else curve

    def _chance(self, loss: Curve) -> float | None:
        """As recorded; of a cross-entropy that is one of several terms, where its level shows it.

        What such a loss was multiplied by is unknown; but it stands at ln(classes), at first or at
        last, only where that is nothing.
        """
        chance, classes = self.run.info.get("chance"), self.run.info.get("classes")
        if isinstance(chance, int | float) and chance > 0:
            return float(chance)
        if self.run.info.get("loss_kind") != "cross_entropy" or not isinstance(classes, int):
            return None
        guess = float(np.log(classes)) if classes > 1 else np.inf
        # batches that are their own classes may grow, and the guess with them
        levels = (
            (loss.late,) if self.run.info.get("classes_are_samples") else (loss.start, loss.late)
        )
        at_guess = any(abs(level - guess) < 0.02 * guess for level in levels)
        return guess if at_guess else None

    @cached_property
    def total_gradient(self) -> Array:
        """Norm over all parameters for each row; NaN where nothing was measured."""
        total = np.full(self.end, np.nan)
        rows = self.rows(Stat.GRAD_NORM)
        for begin, norms in self.blocks(Stat.GRAD_NORM, rows):
            part = np.sqrt(np.nansum(np.square(norms, out=norms), axis=1))
            total[rows[begin : begin + len(norms)]] = part
        total[self.skipped[: self.end]] = np.nan
        return total

    @cached_property
    def rms_gradient(self) -> Array:
        """Factor that turns a gradient norm into an RMS, per parameter."""
        counts = np.array([max(p.count, 1) for p in self.parameters], float)
        scale: Array = 1 / np.sqrt(counts)
        return scale

    @cached_property
    def gains(self) -> Array:
        """How much each weight amplifies at first: std × √fan-in; 0.5 to 1.5 by usual recipes."""
        if Stat.WEIGHT_STD not in self.run.recorded:
            return np.full(len(self.parameters), np.nan)
        return np.asarray(self.first(Stat.WEIGHT_STD) * np.sqrt(self.fan_in), float)


def worst_first(mask: Mask, badness: Array) -> Rows:
    """The columns of a mask, the largest badness first; equal ones keep their order."""
    columns = np.flatnonzero(mask)
    return columns[np.argsort(-badness[columns], kind="stable")]


def since(beyond: Mask) -> int:
    """From where on something lasts to the end; the last place where it does not."""
    within = np.flatnonzero(~beyond)
    return min(int(within[-1]) + 1 if len(within) else 0, len(beyond) - 1)


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
