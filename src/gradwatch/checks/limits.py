"""The limits of gradients, and the few functions that apply them: the one place for all doors.

What is vanishing, exploding, silent (no gradient) or non-finite is said here and nowhere else, and
so is how grave it is. The checks put it into words; regions, heat maps and animations ask on which
steps a parameter was beyond its limit (`…_cells`, a mask [row, column] of the run). A column is a
parameter's place in the run, a row is a step's.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.bearable import BEARABLE
from gradwatch.checks.context import CheckContext, Mask, Rows, worst_first
from gradwatch.checks.outcome import outcome
from gradwatch.checks.target_scale import harmful, targets
from gradwatch.finding import Severity
from gradwatch.stats import HAS_VALUE, Kind, Stat, State
from gradwatch.stats.medians import Array, medians, thinned

STARVED = 1e-4
"""Vanishing: gradient RMS at or below this share of the strongest layer's."""
WEAK = 1e-2
"""At or below this share it is only mentioned."""
FAINT = 1e-20
"""Vanishing whatever the others have: RMS of the strongest layer at or below this.

Its square, which Adam keeps, is below the normal numbers of float32 (1e-38), its step is 1e-12 of
Adam's usual one (ε = 1e-8), and no step of SGD reaches the last bit of a weight. Losses in odd
units make gradients small too, but 1e-10 is small already.
"""
FADED = 1e-8
"""Fading: RMS at or below this share of its own beginning (and of one), the loss not having fallen.

The gradient of a network that only converges ends at about 1e-7 of its beginning, where the
rounding of float32 takes over; and below 1e-8 Adam's steps shrink with it.
"""
FEWEST = 8
"""Samples a judgement of levels needs."""
FALLEN = 0.1
"""A loss has fallen when this share of its start has gone."""

HUGE, HUGE_STEPS = 1e3, 3
"""Exploding: norm above this on so many steps,"""
ENORMOUS = 1e6
"""above this once,"""
GROWTH = 1e3
"""or above so many times its own past, at the end of what was seen."""
LARGE = 100.0
"""Above this on three steps it is only mentioned."""
ABOVE = 10.0
"""What has grown is no explosion while it is still small."""
SUDDEN = 100.0
"""At once: so many times the highest norm before."""
PAST = 5
"""Samples a parameter's own past must have."""
JUST_NOW = 3
"""Samples before the end in which a sudden growth counts whatever its size."""

SILENT = 0.95
"""No gradient: none, or exactly zero, on this share of the steps,"""
SILENT_STEPS, NONE_STEPS = 5, 3
"""of which there must be so many (fewer where it is None, which is no rounding),"""
SILENT_TO_END = 10
"""or on so many samples up to the end."""
CHANCE = 1e-6
"""A parameter that rests often may rest at the end: n samples with f^n above this are chance.

Nor is it silent for good while it has come back from as long a rest (phases of a training).
"""

MASK = 0.9
"""Outputs that are infinite on this share of the steps, the first included, are masks."""


class Trouble(StrEnum):
    """The kinds of trouble that every door speaks of in the same words."""

    NON_FINITE = "NonFinite"
    DEAD = "Dead"
    EXPLODING = "Exploding"
    VANISHING = "Vanishing"


class Rule(StrEnum):
    """By which rule a parameter is beyond a limit; each has a sentence of its own."""

    STARVED = "starved"
    FAINT = "faint"
    FADED = "faded"
    HUGE = "huge"
    SUDDEN = "sudden"
    SILENT = "silent"
    NON_FINITE = "non-finite"


def severity(ctx: CheckContext, rule: Rule, degree: Severity) -> Severity:
    """How grave it is: as far beyond the limit as `degree` says, less where the training bears it.

    Every door takes its severity from findings, and every finding of these kinds from here.
    """
    borne = {
        Rule.STARVED: outcome(ctx).learning >= BEARABLE["vanishing-gradient"].learning,
        Rule.FAINT: has_fallen(ctx),
        Rule.HUGE: degree > Severity.INFO and _summed_loss(ctx),
    }
    return Severity.INFO if borne.get(rule, False) else degree


def has_fallen(ctx: CheckContext) -> bool:
    """Whether a loss was logged and fell, or was low before (fine-tuning)."""
    loss = ctx.level
    return loss is not None and (loss.progress >= FALLEN or loss.trained_before)


def _summed_loss(ctx: CheckContext) -> bool:
    """Gradients are large because the loss is a sum, not because anything grows.

    Targets of a scale that hurts are no such excuse: large gradients are how they do.
    """
    loss = ctx.level
    if harmful(ctx, targets(ctx)):
        return False
    if loss is None or len(loss) < 10 or loss.start < 30 or loss.progress < 0.5:
        return False
    if Stat.UPDATE_RATIO in ctx.run.recorded:
        ratio = ctx.late(Stat.UPDATE_RATIO, 1.0)[ctx.weights]
        if np.isfinite(ratio).any() and float(np.nanmax(ratio)) > 0.1:
            return False
    if not np.isfinite(ctx.total_gradient).any():
        return False
    typical = float(np.nanmedian(ctx.total_gradient))
    return typical < 3 * float(np.median(loss.values)) and loss.chance is None


@dataclass(frozen=True, eq=False)
class Judgement:
    """The parameters that one rule finds beyond their limit."""

    rule: Rule
    severity: Severity
    columns: Rows
    """The one to open first in front."""
    limits: Array
    """For every parameter the norm that was its limit; NaN where it is not beyond one."""
    rows: Rows
    """On which it was seen: those beyond; of starved layers all that were judged."""
    levels: Array
    """What was held against it: RMS for vanishing, the highest norm for exploding."""


def gradient_rows(ctx: CheckContext) -> Rows:
    """Rows with gradients that count: those a scaler skipped do not."""
    rows = ctx.rows(Stat.GRAD_NORM)
    return rows[~ctx.skipped[rows]]


# -- vanishing -------------------------------------------------------------------------------------


def vanishing(
    ctx: CheckContext,
    *,
    ratio: float = STARVED,
    weak: float = WEAK,
    faint: float = FAINT,
    fade: float = FADED,
    least: int = FEWEST,
) -> tuple[Judgement, ...]:
    """Layers starved beside others or all faint; then those whose gradient fades in the run.

    Embeddings, biases, frozen weights and weights whose gradient is exactly zero are left out.
    """
    judged = ctx.weights & ~ctx.embeddings
    low = _starved(ctx, judged, ratio, weak, faint, least)
    left = judged.copy()
    if low is not None and low.severity > Severity.INFO:
        left[low.columns] = False
    fading = _faded(ctx, left, fade, least)
    return tuple(item for item in (low, fading) if item is not None)


def _starved(
    ctx: CheckContext, judged: Mask, ratio: float, weak: float, faint: float, least: int
) -> Judgement | None:
    """Far below the strongest layer, or the strongest itself is nothing.

    Over all of the time before convergence, or over its second half: a layer may starve late.
    """
    rows = before_convergence(ctx)
    whole, late = (
        _level(ctx, part, judged, ratio, weak, faint) if len(part) >= least else None
        for part in (rows, rows[len(rows) // 2 :])
    )
    if late is not None and late.severity > Severity.INFO:
        known = -1 if whole is None or whole.severity < late.severity else len(whole.columns)
        if len(late.columns) > known:
            return replace(late, rows=_below(ctx, rows, late.limits))
    return whole


def _level(
    ctx: CheckContext, rows: Rows, judged: Mask, ratio: float, weak: float, faint: float
) -> Judgement | None:
    """What the median levels over these rows show."""
    norms = medians(ctx.values(Stat.GRAD_NORM, thinned(rows)))
    typical = np.where(judged & (norms > 0), norms * ctx.rms_gradient, np.nan)
    if not np.isfinite(typical).any():
        return None
    strongest = strongest_beside(ctx, typical)
    rule, degree, limit = Rule.STARVED, Severity.WARNING, ratio * strongest
    if np.nanmax(typical) <= faint:
        rule, degree, limit = Rule.FAINT, Severity.CRITICAL, np.full(len(typical), faint)
    elif not (typical <= limit).any():
        degree, limit = Severity.INFO, weak * strongest
    beyond = typical <= limit
    if not beyond.any():
        return None
    limits = np.where(beyond, limit / ctx.rms_gradient, np.nan)
    grave = severity(ctx, rule, degree)
    return Judgement(rule, grave, worst_first(beyond, -typical), limits, rows, typical)


def strongest_beside(ctx: CheckContext, levels: Array) -> Array:
    """For every parameter the highest level among those it may be held against.

    Where several losses and several optimizers were seen, networks are trained side by side, each
    by a loss of its own scale: then those of the same optimizer, else all.
    """
    given = ctx.run.info.get("optimizers")
    owners = np.zeros(len(levels), int)
    if len(ctx.losses) > 1 and isinstance(given, list):
        owner = {
            group.get("group"): number
            for number, optimizer in enumerate(given)
            for group in optimizer.get("groups", ())
        }
        owners = np.array([owner.get(p.group, -1) for p in ctx.parameters], int)
    highest = np.full(len(levels), np.nan)
    for number in np.unique(owners):
        own = owners == number
        highest[own] = np.fmax.reduce(levels[own])
    return highest


def _faded(ctx: CheckContext, judged: Mask, fade: float, least: int) -> Judgement | None:
    """Far below their own beginning although the loss has not fallen."""
    rows = gradient_rows(ctx)
    if len(rows) < least or not judged.any() or has_fallen(ctx):
        return None
    edge = max(3, len(rows) // 10)
    early, late = (
        medians(_positive(ctx.values(Stat.GRAD_NORM, thinned(part)))) * ctx.rms_gradient
        for part in (rows[:edge], rows[-edge:])
    )
    limit = fade * np.minimum(early, 1.0)
    beyond = judged & (late <= limit) & (early > 0)
    if not beyond.any():
        return None
    limits = np.where(beyond, limit / ctx.rms_gradient, np.nan)
    grave = severity(ctx, Rule.FADED, Severity.WARNING)
    columns = worst_first(beyond, -late / early)
    return Judgement(Rule.FADED, grave, columns, limits, _below(ctx, rows, limits), late)


def _below(ctx: CheckContext, rows: Rows, limits: Array) -> Rows:
    """The rows in which any norm is at or below its limit."""
    under = [(norms <= limits).any(axis=1) for _, norms in ctx.blocks(Stat.GRAD_NORM, rows)]
    return rows[np.concatenate(under)]


def before_convergence(ctx: CheckContext) -> Rows:
    """Gradient rows up to where the loss has fallen to a tenth; all of them when it never does."""
    rows = gradient_rows(ctx)
    loss = ctx.level
    if loss is None or len(loss) < 10:
        return rows
    low = loss.values <= 0.1 * loss.start
    if low.mean() < 0.2 or loss.start <= 0:
        return rows
    step = loss.steps[int(low.argmax())]
    return rows[ctx.steps[rows] <= max(int(step), int(loss.steps[min(20, len(loss) - 1)]))]


def vanishing_cells(ctx: CheckContext) -> Mask:
    """Steps on which a parameter that is judged vanishing was at or below its limit."""
    cells = ctx.nowhere(Kind.PARAMETER)
    for item in vanishing(ctx):
        if item.severity < Severity.WARNING:
            continue
        for begin, norms in ctx.blocks(Stat.GRAD_NORM, item.rows):
            cells[item.rows[begin : begin + len(norms)]] |= norms <= item.limits
    return cells


# -- exploding -------------------------------------------------------------------------------------


@np.errstate(over="ignore")  # a limit beyond the range is infinite: nothing exceeds it
def exploding(
    ctx: CheckContext,
    *,
    huge: float = HUGE,
    enormous: float = ENORMOUS,
    growth: float = GROWTH,
    large: float = LARGE,
) -> Judgement | None:
    """Huge on a few steps, enormous once, or far above their own past at the end."""
    rows = gradient_rows(ctx)
    if not len(rows):
        return None
    usual = _own_past(ctx, rows)
    past = growth * usual
    seen = _Scan.of(ctx, rows, huge, large, past)
    grown, grown_limit = _grown(ctx, rows, growth)
    sudden = _at_the_end(ctx, rows, seen, usual, past)
    often = (seen.huge >= HUGE_STEPS) | (seen.peak > enormous)
    limits = np.full(len(ctx.parameters), np.nan)
    for beyond, limit in ((often, huge), (grown, grown_limit), (sudden, past)):
        limits = np.where(beyond, np.fmin(limits, limit), limits)
    degree = Severity.WARNING
    if not (often | grown | sudden).any():
        limits[seen.large >= HUGE_STEPS], degree = large, Severity.INFO
    elif grown.any() or seen.peak.max() > enormous:
        degree = Severity.CRITICAL
    if not np.isfinite(limits).any():
        return None
    rule = Rule.SUDDEN if sudden.any() and not (often | grown).any() else Rule.HUGE
    over, onset = _beyond_since(ctx, rows, limits)
    columns = np.flatnonzero(np.isfinite(limits))
    columns = columns[np.lexsort((-seen.peak[columns], onset[columns]))]
    # named first: weights that amplify, then what left the others first, then the largest
    columns = np.fromiter(dict.fromkeys([*_amplifiers(ctx), *columns]), np.intp)
    return Judgement(rule, severity(ctx, rule, degree), columns, limits, over, seen.peak)


@dataclass(frozen=True, eq=False, slots=True)
class _Scan:
    """What one pass over the norms shows of each parameter; `past` is the limit it was given."""

    huge: NDArray[np.int64]
    large: NDArray[np.int64]
    peak: Array
    last: Array
    first_over: NDArray[np.int64]
    """Row of the first norm above `past`; beyond the last row where there is none."""
    last_under: NDArray[np.int64]
    highest_under: Array

    @classmethod
    def of(cls, ctx: CheckContext, rows: Rows, huge: float, large: float, past: Array) -> "_Scan":
        """In blocks of rows, so that only a block is copied."""
        width = len(past)
        counts = np.zeros((2, width), np.int64)
        peak, last, highest = np.zeros(width), np.zeros(width), np.zeros(width)
        first, under = np.full(width, len(rows)), np.full(width, -1)
        for begin, norms in ctx.blocks(Stat.GRAD_NORM, rows):
            counts[0] += (norms > huge).sum(axis=0)
            counts[1] += (norms > large).sum(axis=0)
            np.fmax(peak, np.fmax.reduce(norms, axis=0), out=peak)
            over, within = norms > past, norms <= past
            np.minimum(first, np.where(over.any(0), begin + over.argmax(0), first), out=first)
            final = begin + len(norms) - 1 - within[::-1].argmax(axis=0)
            under = np.where(within.any(axis=0), final, under)
            np.fmax(highest, np.fmax.reduce(np.where(within, norms, 0.0), axis=0), out=highest)
            measured = np.isfinite(norms)
            newest = len(norms) - 1 - measured[::-1].argmax(axis=0)
            last = np.where(measured.any(axis=0), norms[newest, np.arange(width)], last)
        return cls(counts[0], counts[1], peak, last, first, under, highest)


def _own_past(ctx: CheckContext, rows: Rows) -> Array:
    """Median norm over the first half, the last sample left out; NaN where it has too few."""
    half = rows[: max(PAST, len(rows) // 2)][: len(rows) - 1]
    norms = _positive(ctx.values(Stat.GRAD_NORM, thinned(half)))
    enough = np.isfinite(norms).sum(axis=0) >= PAST
    return np.where(enough, medians(norms), np.nan)


def _at_the_end(ctx: CheckContext, rows: Rows, seen: _Scan, usual: Array, past: Array) -> Mask:
    """Beyond their own past up to the last sample, never having come back.

    One sample is enough, so it has to be clear by two of three: above ten, above what any parameter
    usually has, at once. A branch that starts at nothing grows to what the others have, and a
    network leaving a saddle grows slowly: neither explodes. On the last few samples, of which
    nobody knows the future, "at once" is enough unless it is still weak beside the others.
    """
    stays = (seen.first_over > seen.last_under) & (seen.last > past)
    first = rows[np.minimum(seen.first_over, len(rows) - 1)]
    entered = ctx.run.at(Stat.GRAD_NORM, first, np.arange(len(past)))
    at_once = entered > SUDDEN * seen.highest_under
    strongest = np.fmax.reduce(usual, initial=0.0)
    signs = (seen.last > ABOVE).astype(int) + (seen.last > strongest) + at_once
    just_now = at_once & (seen.first_over >= len(rows) - JUST_NOW) & (seen.last > WEAK * strongest)
    return np.asarray(stays & ((signs >= 2) | just_now), bool)


def _grown(ctx: CheckContext, rows: Rows, growth: float) -> tuple[Mask, Array]:
    """Late median far above the early one, and not small; with the norm that was the limit."""
    if len(rows) < 20:
        width = len(ctx.parameters)
        return np.zeros(width, bool), np.full(width, np.nan)
    fifth = max(5, len(rows) // 5)
    early = medians(ctx.values(Stat.GRAD_NORM, thinned(rows[:fifth])))
    late = medians(ctx.values(Stat.GRAD_NORM, thinned(rows[-fifth:])))
    limit = np.maximum(ABOVE, growth * np.maximum(early, 1e-12))
    return np.asarray((late > limit) & (early > 0), bool), limit


def _beyond_since(ctx: CheckContext, rows: Rows, limits: Array) -> tuple[Rows, NDArray[np.int64]]:
    """Rows in which any norm is above its limit, and the place of each parameter's first one."""
    onset, some = np.full(len(limits), len(rows)), np.zeros(len(rows), bool)
    for begin, norms in ctx.blocks(Stat.GRAD_NORM, rows):
        over = norms > limits
        np.minimum(onset, np.where(over.any(0), begin + over.argmax(0), onset), out=onset)
        some[begin : begin + len(norms)] = over.any(axis=1)
    return rows[some], onset


def _amplifiers(ctx: CheckContext) -> Rows:
    """At most two weights that amplify far more than the others."""
    gains = ctx.gains
    typical = float(np.nanmedian(gains)) if np.isfinite(gains).any() else np.nan
    return worst_first(np.nan_to_num(gains) > max(4.0, 4 * np.nan_to_num(typical)), gains)[:2]


def exploding_cells(ctx: CheckContext) -> Mask:
    """Steps on which a parameter that is judged exploding was above its limit.

    A weight that is named because it amplifies is marked on the steps on which any other is.
    """
    cells, item = ctx.nowhere(Kind.PARAMETER), exploding(ctx)
    if item is None or item.severity < Severity.WARNING:
        return cells
    for begin, norms in ctx.blocks(Stat.GRAD_NORM, item.rows):
        cells[item.rows[begin : begin + len(norms)]] = norms > item.limits
    amplifiers = item.columns[np.isnan(item.limits[item.columns])]
    cells[:, amplifiers] = cells.any(axis=1, keepdims=True)
    return cells


# -- silent ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Silence:
    """The parameters without any gradient."""

    severity: Severity
    columns: Rows
    onset: Rows
    """Row from which on, for every parameter."""
    fraction: Array
    """Share of the steps without a gradient, for every parameter."""
    absent: Mask
    """Whether that is None (else zero), for every parameter."""
    looked: Rows
    """Those in which any gradient was looked for."""
    everything: bool
    """Nothing that should learn has a gradient."""


def silent(
    ctx: CheckContext,
    *,
    share: float = SILENT,
    least: int = SILENT_STEPS,
    least_none: int = NONE_STEPS,
    to_end: int = SILENT_TO_END,
) -> Silence | None:
    """Parameters whose gradient is None or exactly zero nearly always, or from a step to the end.

    Weights; biases and single vectors only where no weight is silent, and then as information.
    """
    if not ctx.end:
        return None
    rows, none, empty, looked = _empty_cells(ctx)
    if not len(rows):
        return None
    counts, empties, nones = looked.sum(axis=0), empty.sum(axis=0), none.sum(axis=0)
    fraction = empties / np.maximum(counts, 1)
    enough = (counts >= least) | ((nones == counts) & (counts >= least_none))
    alive = looked & ~empty
    last_alive = np.where(alive.any(axis=0), len(rows) - 1 - alive[::-1].argmax(axis=0), -1)
    to_the_end = looked & (np.arange(len(rows))[:, None] > last_alive)
    trailing = to_the_end.sum(axis=0)
    rests = (empties - trailing) / np.maximum(counts - trailing, 1)
    stays = (trailing >= to_end) & (rests**trailing <= CHANCE)
    often = np.flatnonzero(stays & (empties > trailing))
    stays[often] &= trailing[often] > _longest_rest(alive[:, often], looked[:, often])
    always = (fraction >= share) & enough
    beyond = (always | stays) & ctx.trainable
    weights = beyond & ctx.matrices
    columns = np.flatnonzero(weights if weights.any() else beyond)
    if not len(columns):
        return None
    mostly = trailing >= share * empties  # a few silent steps before do not count as its beginning
    onset = np.where(mostly | ~always, to_the_end.argmax(axis=0), empty.argmax(axis=0))
    degree = Severity.CRITICAL if weights.any() else Severity.INFO
    return Silence(
        severity(ctx, Rule.SILENT, degree),
        columns,
        rows[onset],
        fraction,
        nones > 0.5 * counts,
        rows[looked.any(axis=1)],
        bool((fraction[ctx.trainable] >= share).all()),
    )


def _longest_rest(alive: Mask, looked: Mask) -> NDArray[np.int64]:
    """Samples of the longest silence that each parameter came back from."""
    sample = np.cumsum(looked, axis=0)
    before = np.maximum.accumulate(np.where(alive, sample, 0), axis=0)
    before = np.vstack([np.zeros_like(before[:1]), before[:-1]])
    longest: NDArray[np.int64] = np.where(alive, sample - before - 1, 0).max(axis=0, initial=0)
    return longest


def _empty_cells(ctx: CheckContext) -> tuple[Rows, Mask, Mask, Mask]:
    """Rows; in them, where the gradient was None, there was none, one was looked for."""
    rows = ctx.run.sampled(Stat.GRAD_NORM)
    rows = rows[: np.searchsorted(rows, ctx.end)]
    states = ctx.run.states_at(Stat.GRAD_NORM, rows)
    none = states == State.NO_GRADIENT
    looked = none | HAS_VALUE[states]
    looked[ctx.skipped[rows]] = False
    if ctx.loss is not None:  # where the loss is zero, no gradient is right (hinge losses)
        losses = np.nan_to_num(np.abs(ctx.run.scalars[ctx.loss.name][rows]), nan=1.0)
        looked[losses <= 1e-6 * abs(ctx.loss.start)] = False
    return rows, none, (none | (ctx.values(Stat.GRAD_NORM, rows) == 0)) & looked, looked


# -- non-finite ------------------------------------------------------------------------------------


_OUTPUTS = (Stat.PROBE_NONFINITE, Stat.ACT_NONFINITE)


def nonfinite_cells(ctx: CheckContext) -> Mask:
    """Where a gradient or weight held NaN or Inf, [row, column]."""
    return nonfinite_gradients(ctx) | ctx.counted(Stat.WEIGHT_NAN, Stat.WEIGHT_INF)


def nonfinite_gradients(ctx: CheckContext) -> Mask:
    """Where a gradient held NaN or Inf; overflow on steps that a scaler skipped is by design."""
    cells = ctx.counted(Stat.GRAD_NAN, Stat.GRAD_INF)
    cells[ctx.skipped] = False
    return cells


def nonfinite_outputs(ctx: CheckContext) -> Mask:
    """Where a layer's output held NaN or Inf, [row, column of the layers' series]."""
    return ctx.counted(*_OUTPUTS)


def outputs_are_masks(ctx: CheckContext, share: float = MASK) -> bool:
    """Whether such outputs are meant: there from the first step on, and all else is finite."""
    bad = ctx.bad(*_OUTPUTS)
    looked = np.union1d(*map(ctx.run.measured_rows, _OUTPUTS))
    from_the_first = not ctx.went_bad and bool(bad[:1].any())
    return from_the_first and bool(bad[looked].sum() >= share * max(len(looked), 1))


# -- helpers ---------------------------------------------------------------------------------------


def _positive(norms: Array) -> Array:
    """NaN for zeros, which say nothing about a level."""
    return np.where(norms > 0, norms, np.nan)


def usual_norms(ctx: CheckContext) -> Array:
    """Norms of weights as default initialisations make them: std 1/√(3·fan-in), of gains one."""
    std = np.where(np.isfinite(ctx.fan_in), 1 / np.sqrt(3 * ctx.fan_in), 0.1)
    return np.asarray(np.where(ctx.norm_gains, 1.0, std) / ctx.rms_gradient, float)
