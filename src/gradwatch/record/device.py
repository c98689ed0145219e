"""Parameters on accelerators: measured there by few operations of torch's, finished on the host.

Norm, mean magnitude and largest magnitude come from `torch._foreach_norm` and are exact, as is
whether everything is finite. All else is told by at most 4,096 evenly spread elements of each
tensor, which the kernel measures once they have come over; smaller tensors come over whole. The
training never waits for a number, and what waits for numbers keeps no tensor alive.
GRADWATCH_DEVICE_ENGINE=torch measures tensors of the CPU in this way too, =triton measures with
Triton's kernel (`record.triton`), which reads every element once.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from math import frexp, inf
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.errors import Exit, GradwatchError
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.recorder import Call, Found, Late, Recorder, StepRows
from gradwatch.record.sampler import SMALLEST_CLIP, TOLERANCE, Change
from gradwatch.record.tensors import KERNEL_DTYPES, aligned, local, number, rows_lie_whole, spread
from gradwatch.record.transfer import Parts, Transfer
from gradwatch.run import Event, EventKind, HistogramTable
from gradwatch.stats import Family, State
from gradwatch.stats.rows import empty_rows, moment_rows, update_rows

VARIABLE = "GRADWATCH_DEVICE_ENGINE"
TORCH, TRITON = "torch", "triton"
SAMPLE = 4096
"""Elements of each tensor that come over; of smaller ones all."""
TURNS = 4
"""Recorded steps from one look at the rows of gradients to the next."""
MANY = 256
"""Of more tensors the mean magnitude is taken only where rows are looked at: a CUDA stream holds
about 1,000 launches, and a third norm of all that 7 billion parameters have would fill it."""
LEAST = 1e-15
"""A largest magnitude whose square, and those of the elements that matter, float32 can hold."""


# -- which engine measures -------------------------------------------------------------------------


def forced() -> str | None:
    """The engine the environment asks for; GradwatchError where there is no such engine."""
    name = os.environ.get(VARIABLE, "").lower() or None
    if name not in (None, TORCH, TRITON):
        raise GradwatchError(f"{VARIABLE} must be {TRITON} or {TORCH}, got {name!r}.", Exit.USAGE)
    return name


def check_forced(parameters: Iterable[Tensor]) -> None:
    """GradwatchError where the environment asks for an engine that cannot be had."""
    asked, devices = forced(), {parameter.device for parameter in parameters}
    for device in devices if asked == TRITON else ():
        if why := hindrance(device):
            text = f"{VARIABLE} asks for {TRITON}, which cannot be had on {device}: {why}."
            raise GradwatchError(f"{text} Unset it, or set it to {TORCH}.", Exit.USAGE)


def hindrance(device: torch.device) -> str:
    """Why Triton cannot measure on this device; "" where it can."""
    try:
        return str(import_module("gradwatch.record.triton").hindrance(device))
    except ImportError as error:
        return f"triton cannot be imported ({error})"


def engine_name(device: torch.device) -> str:
    """What measures tensors that a `DeviceMeter` is given, as `run.info["engines"]` says it."""
    return TRITON if forced() == TRITON and not hindrance(device) else TORCH


# -- what an engine gives --------------------------------------------------------------------------


class Measured(NamedTuple):
    """Of every tensor that was measured, times the multiplier that was asked for."""

    records: NDArray[np.void]
    """MOMENTS; where the tensor was sampled, counts are extrapolated."""
    whole: NDArray[np.bool_]
    """Whether they describe every element."""
    samples: Parts
    """At most 4,096 elements of each."""
    touched: list[NDArray[np.bool_] | None]
    """Which rows hold something other than zeros; None where nobody looked, or there are none."""


Launched = tuple[list[Tensor], Callable[[Parts, float], Measured]]
"""Small tensors for a `Transfer`, and what makes statistics of their numbers and a multiplier."""
Engine = Callable[[list[Tensor], bool, bool], Launched]
"""Measures tensors of one device and type, each as `readable` leaves it. The first flag asks which
rows of matrices hold something other than zeros, the second for mean magnitudes."""


def launch(tensors: Sequence[Tensor], *, rows: bool, engine: Engine | None = None) -> Launched:
    """Measure tensors of any devices and types, those of float64 always with torch's operations."""
    groups: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    sent = []
    for (_, dtype), at in groups.items():
        measure = by_torch if engine is None or dtype is torch.float64 else engine
        sent.append((at, measure([tensors[i] for i in at], rows, rows or len(tensors) <= MANY)))

    def finish(arrived: Parts, multiplier: float) -> Measured:
        take, n = iter(arrived), sum(len(at) for at, _ in sent)
        joined = Measured(
            np.zeros(n, kernel.MOMENTS), np.ones(n, bool), [np.zeros(0)] * n, [None] * n
        )
        for at, (parts, done) in sent:
            found = done([next(take) for _ in parts], multiplier)
            joined.records[at], joined.whole[at] = found.records, found.whole
            for i, sample, marks in zip(at, found.samples, found.touched, strict=True):
                joined.samples[i], joined.touched[i] = sample, marks
        return joined

    return [part for _, (parts, _) in sent for part in parts], finish


def by_torch(tensors: list[Tensor], rows: bool, absolute: bool) -> Launched:
    """The `Engine` for every device: three norms of what is larger than its sample."""
    sizes = np.array([tensor.numel() for tensor in tensors], np.int64)
    lengths = [len(tensor) if rows and tensor.dim() > 1 else 0 for tensor in tensors]
    # None of them is empty: of such a one `_foreach_norm` gives wrong norms (pytorch #140066).
    large = np.flatnonzero(sizes > SAMPLE).tolist()
    some, flat = [tensors[i] for i in large], [tensors[i] for i in large if not lengths[i]]
    # In their own type sums of 16-bit numbers would overflow or be rounded.
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    parts = [spread(tensor, SAMPLE) for tensor in tensors]
    for order, given in ((2, some), (1, some if absolute else []), (inf, flat)):
        parts += torch._foreach_norm(given, order, dtype=wide) if given else ()
    for matrix in (tensors[i] for i in large if lengths[i]):
        # The largest of every row tells the largest of all: no other pass is needed.
        dims = tuple(range(1, matrix.dim()))
        parts.append(torch.linalg.vector_norm(matrix, inf, dim=dims, dtype=wide))

    def finish(arrived: Parts, multiplier: float) -> Measured:
        take = iter(arrived)
        samples = [next(take) * multiplier for _ in sizes]
        two = [next(take)[0] for _ in large]
        one = [next(take)[0] if absolute else np.nan for _ in large]
        tops = {i: next(take) for i in sorted(large, key=lambda i: lengths[i] > 0)}
        norms = np.array([two, one, [tops[i].max() for i in large]]) * multiplier
        records = kernel.measure_arrays(samples)
        _extrapolate(records, sizes)
        if large:
            records[large] = _with_norms(records[large], *norms)
        touched: list[NDArray[np.bool_] | None] = [None] * len(sizes)
        for i in np.flatnonzero(sizes * lengths).tolist():
            marks = (tops.get(i, samples[i]).reshape(lengths[i], -1) != 0).any(1)
            touched[i], records["zero_rows"][i] = marks, np.count_nonzero(~marks)
        return Measured(records, sizes <= SAMPLE, samples, touched)

    return parts, finish


def _extrapolate(records: NDArray[np.void], sizes: NDArray[np.int64]) -> None:
    """From samples to whole tensors: what grows with the number of elements."""
    share = sizes / np.maximum(records["count"], 1)
    for name in ("zeros", "nan", "pos_inf", "neg_inf"):
        records[name] = np.rint(records[name] * share)
    records["norm"] *= np.sqrt(share)
    records["count"], records["zero_rows"] = sizes, 0


def _with_norms(records: NDArray[np.void], two: Any, one: Any, top: Any) -> NDArray[np.void]:
    """Put the norms in; where something is not finite the finite part of the sample stands."""
    records["nan"] = np.maximum(records["nan"], np.isnan(top))
    records["pos_inf"] += np.isinf(top) & (records["pos_inf"] + records["neg_inf"] == 0)
    finite, mean = np.isfinite(top), one / records["count"]
    # Outside of these limits squares leave the range of float32: then the sample tells better.
    squares = finite & np.isfinite(two) & ((top == 0) | (top > LEAST))
    records["norm"] = np.where(squares, two, records["norm"])
    records["abs_mean"] = np.where(finite & ~np.isinf(one), mean, records["abs_mean"])
    records["abs_max"] = np.where(finite, top, records["abs_max"])
    return records


# -- one optimizer's parameters --------------------------------------------------------------------

_Words = NDArray[np.uint64]
_NO_ROWS: _Words = np.zeros(0, np.uint64)
_Rows = tuple[NDArray[np.uint8], NDArray[np.void]]
"""States and rows, which may still be changed."""


class DeviceMeter:
    """Measures parameters that lie on one or several devices; a `Meter`."""

    def __init__(self, tracked: TrackedOptimizer, recorder: Recorder) -> None:
        self._tracked = tracked
        self._recorder = recorder
        self._triton = forced() == TRITON
        self._turn = 0
        self._memory: dict[int, tuple[NDArray[np.float64], _Words, _Words]] = {}
        """Of each gradient by id: the last sample, in which of the last 64 looks its rows were
        touched, one bit each, and whether they ever were."""
        self._before: Transfer | None = None
        self._void = -1
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def gradients(self, call: Call) -> None:
        """Launch their statistics; scaling and clipping are undone when the numbers have come."""
        tracked, step, own = self._tracked, call.plan.step, call.tracked is self._tracked
        if call.skipped and own:
            call.found.nothing(Family.GRAD, tracked.ids, State.SKIPPED_STEP)
            return
        look, self._turn = self._turn % TURNS == 0, self._turn + 1
        tables = call.plan.full and self._recorder.histograms
        sent, done = self._measure(Family.GRAD, step, tracked.gradients(), look, tables)
        # Before its step a fused optimizer's gradients are still scaled.
        optimizer = tracked.optimizer if own and not call.closure else None
        sampler, scaling, ids = tracked.sampler, tracked.sampler.scaling, tracked.ids
        known = scaling.meet() if optimizer is not None else scaling.known
        parts = [_number(getattr(optimizer, "grad_scale", None), 1.0)]
        parts += [_number(getattr(optimizer, "found_inf", None), 0.0), _number(scaling.tensor, 1.0)]
        pairs = sampler.pairs() if own else []
        parts += [each for pair in pairs for each in pair]
        epsilons = [torch.finfo(now.dtype).eps for _, now in pairs]

        def finish(arrived: Parts) -> Found:
            found, take = Found(step), iter(arrived)
            held, overflow, scale = (float(next(take)[0]) for _ in range(3))
            change = transform_between([(next(take), next(take), each) for each in epsilons])
            found.skipped = overflow > 0
            if own and (known or found.skipped):
                found.scalars["skipped"] = float(found.skipped)
            if found.skipped:
                self._void = step
                found.nothing(Family.GRAD, ids, State.SKIPPED_STEP)
                return found
            kind, factor, exact = change
            if kind is Change.SCALED and held == 1.0:
                factor *= scale if known else 1.0
                alone = not known and exact and factor < SMALLEST_CLIP
                if alone or abs(factor - 1.0) < TOLERANCE:
                    factor = 1.0  # only the loss scale was taken out
            if own and kind in (Change.NONE, Change.SCALED):
                found.scalars["clip_factor"] = factor
            states, _ = done(found, list(take), 1.0 / (held * factor))
            if kind is Change.CHANGED:
                states[(states == State.MEASURED) | (states == State.SAMPLED)] = State.CLIPPED
            return found

        call.found.late.append(Late(Transfer(parts + sent), finish))

    def weights(self, found: Found, *, histograms: bool) -> None:
        """Launch the statistics of the weights. No hash: who compares weights compares norms."""
        step, tensors = found.step, self._tracked.tensors()
        sent, done = self._measure(Family.WEIGHT, step, tensors, True, histograms)
        corners = {i: _corner(t) for i, t in _there(tensors).items() if t.dim() > 1 and t.numel()}
        at, shapes = list(corners), [corner.shape for corner in corners.values()]

        def finish(arrived: Parts) -> Found:
            late = Found(step)
            _, rows = done(late, arrived[len(at) :], 1.0)
            tables = [each.reshape(shape) for each, shape in zip(arrived, shapes, strict=False)]
            batch, owners = kernel.batch_of(tables)
            rows["weight_row_spread"][at] = kernel.row_spread(batch)
            del owners  # they had to live until here
            return late

        found.late.append(Late(Transfer([*corners.values(), *sent]), finish))

    def snapshot(self) -> None:
        """Send samples of the weights as they are now."""
        weights = map(readable, self._tracked.tensors())
        self._before = Transfer([_sample(weight, weight) for weight in weights])

    def drop_snapshot(self) -> None:
        """Let them go unused: the step did not come about."""
        self._before = None

    def is_skipped(self) -> bool:
        """Not known before the gradients have come over."""
        return False

    def keep_weights(self) -> None:
        """Nothing: what others do to weights between two steps is not looked for on devices."""

    def compare_weights(self, found: Found) -> None:
        """Nothing, likewise."""

    def updates(self, call: Call) -> None:
        """Send samples of what the step left; they are compared on the host, as on the CPU."""
        before, self._before = self._before, None
        tracked, due, step, skipped = self._tracked, call.plan.due, call.plan.step, call.skipped
        divided = second_moments(tracked.optimizer) if Family.OPTIM in due else {}
        families = [Family.UPDATE] * (before is not None and Family.UPDATE in due)
        families += [Family.OPTIM] * bool(divided)
        if not families:
            return
        ids, n, tensors = tracked.ids, len(tracked.ids), tracked.tensors()
        weights = [readable(tensor) for tensor in tensors]
        adam = [divided.get(id(tensor), (None, None, 0.0, 0.0)) for tensor in tensors]
        parts = []
        for some in (weights, tracked.gradients(), [each[0] for each in adam]):
            parts += [_sample(readable(x), w) for x, w in zip(some, weights, strict=True)]
        parts += [_number(each[1], 1.0) for each in adam]
        beta, eps = np.array([each[2:] for each in adam], np.float64).reshape(n, 2).T
        sizes = np.array([0 if weight is None else weight.numel() for weight in weights])

        def finish(arrived: Parts) -> Found:
            found = Found(step)
            if skipped or self._void == step:
                for family in families:
                    found.nothing(family, ids, State.SKIPPED_STEP)
                return found
            after, old = arrived[:n], arrived[:n] if before is None else before.parts()
            correction = 1.0 - beta ** np.array([float(made[0]) for made in arrived[3 * n :]])
            given = [
                _batch(some, old, after)
                for some in (old, after, arrived[n : 2 * n], arrived[2 * n : 3 * n])
            ]
            batches = [batch for batch, _ in given]
            updates, ratios = kernel.step(*batches, correction=correction, eps=eps)
            seen = np.array([len(x) for x in after])
            told = np.where(sizes > seen, State.SAMPLED, State.MEASURED).astype(np.uint8)
            if Family.UPDATE in families:
                states = np.where(seen > 0, told, State.NO_GRADIENT)
                states[batches[0].counts < seen] = State.NOT_SAMPLED  # swapped during the step
                for name in ("update_norm", "before_norm"):
                    updates[name] *= np.sqrt(sizes / np.maximum(seen, 1))
                found.rows.append(
                    StepRows(Family.UPDATE, step, ids, update_rows(updates, states), states)
                )
            if Family.OPTIM in families:
                states = np.where(np.isnan(ratios["eps_fraction"]), State.NO_GRADIENT, told)
                rows = empty_rows(Family.OPTIM, n)
                rows["optim_ratio_rms"] = ratios["ratio_rms"]
                rows["optim_eps_fraction"] = ratios["eps_fraction"]
                found.rows.append(StepRows(Family.OPTIM, step, ids, rows, states))
            return found

        call.found.late.append(Late(Transfer(parts), finish))

    def _measure(
        self, family: Family, step: int, tensors: Sequence[Tensor | None], look: bool, tables: bool
    ) -> tuple[list[Tensor], Callable[[Found, Parts, float], _Rows]]:
        """What is sent, and what puts the family's rows into a `Found` when it has come."""
        there, ids = _there(tensors), self._tracked.ids
        states = np.full(len(ids), State.NO_GRADIENT, np.uint8)
        for i, tensor in enumerate(tensors):
            if tensor is not None and i not in there:
                states[i], what = State.UNSUPPORTED, "gradient" if family == "grad" else family
                self._recorder.report_unreadable(step, what, self._tracked.parameters[i].name)
        at, (parts, finish) = list(there), self._launch(step, list(there.values()), look)

        def done(found: Found, arrived: Parts, multiplier: float) -> _Rows:
            seen = finish(arrived, multiplier)
            records = np.zeros(len(ids), kernel.MOMENTS)
            records[at] = seen.records
            states[at] = np.where(seen.whole, State.MEASURED, State.SAMPLED)
            rows = moment_rows(family, records, states)
            if family is Family.GRAD:
                for i, sample, marks in zip(at, seen.samples, seen.touched, strict=True):
                    self._remember(int(ids[i]), sample, marks, rows[i])
            found.rows.append(StepRows(family, step, ids, rows, states))
            if tables:
                found.tables.append((family, ids[at], _histograms(seen.samples)))
            return states, rows

        return parts, done

    def _launch(self, step: int, tensors: list[Tensor], look: bool) -> Launched:
        if self._triton:
            try:
                engine = import_module("gradwatch.record.triton").by_triton
                return launch(tensors, rows=look, engine=engine)
            except Exception as error:  # whatever a compiler says: the training goes on
                self._triton = False
                text = f"Triton cannot measure, torch does ({type(error).__name__}: {error})"
                self._recorder.event(Event(step, EventKind.ENGINE, text))
                self._recorder.note({"engines": {str(tensors[0].device): TORCH}})
        return launch(tensors, rows=look)

    def _remember(
        self, key: int, sample: NDArray[np.float64], marks: NDArray[np.bool_] | None, row: np.void
    ) -> None:
        """Cosine to the gradient before, and for how long rows have been zero."""
        last, recent, ever = self._memory.get(key, (sample[:0], _NO_ROWS, _NO_ROWS))
        if len(last) == len(sample) > 0:
            with np.errstate(all="ignore"):
                sizes = np.sqrt(sample @ sample) * np.sqrt(last @ last)
                row["grad_cosine"] = sample @ last / sizes
        if marks is not None:
            if len(recent) != len(marks):
                recent = ever = np.zeros(len(marks), np.uint64)
            recent, ever = recent << np.uint64(1) | marks, ever | marks
        self._memory[key] = sample, recent, ever
        # Between two looks at rows the last one stands.
        row["grad_zero_rows"] = np.count_nonzero(recent & np.uint64(1) == 0)
        row["grad_dead_rows"] = np.count_nonzero(recent == 0)
        row["grad_untouched_rows"] = np.count_nonzero(ever == 0)


# -- tensors and numbers ---------------------------------------------------------------------------


def readable(tensor: Tensor | None) -> Tensor | None:
    """This rank's piece, dense with dimension 0 outermost; None where it cannot be measured."""
    if tensor is None:
        return None
    tensor = local(tensor).detach()
    if tensor.layout is not torch.strided or tensor.dtype not in KERNEL_DTYPES or tensor.is_nested:
        return None
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        return None  # freed, as FSDP does between steps
    whole = rows_lie_whole(tuple(tensor.shape), tensor.stride())
    return tensor if whole else tensor.contiguous()


def _there(tensors: Sequence[Tensor | None]) -> dict[int, Tensor]:
    found = ((i, readable(tensor)) for i, tensor in enumerate(tensors))
    return {i: tensor for i, tensor in found if tensor is not None}


def _sample(tensor: Tensor | None, like: Tensor | None) -> Tensor:
    """At the same coordinates as that of another; none where the two do not fit."""
    if tensor is None or like is None or tensor.shape != like.shape:
        return torch.zeros(0)
    fitting = aligned(tensor, like)
    return torch.zeros(0) if fitting is None else spread(fitting, SAMPLE)


def _batch(some: Parts, old: Parts, new: Parts) -> tuple[kernel.Batch, Any]:
    """Those that can be compared, the others empty; and what owns the batch's memory."""
    fit = zip(some, old, new, strict=True)
    return kernel.batch_of([x if len(x) == len(y) == len(z) else x[:0] for x, y, z in fit])


def _corner(matrix: Tensor) -> Tensor:
    """Up to 17 rows and 64 columns, whose spread stands for that of all rows."""
    rows, inner = len(matrix), matrix.numel() // len(matrix)
    strides = max(1, (rows - 1) // 16) * inner, max(1, inner // 64)
    return matrix.as_strided((min(rows, 17), min(inner, 64)), strides, matrix.storage_offset())


def _number(value: Any, default: float) -> Tensor:
    """One number that may be on a device, where nobody asks for it."""
    if isinstance(value, Tensor):
        return local(value).detach().reshape(-1)[:1]
    return torch.tensor([default if value is None else number(value)], dtype=torch.float64)


def second_moments(optimizer: Any) -> dict[int, tuple[Tensor, Any, float, float]]:
    """Adam's, with the number of steps, β₂ and ε, by the parameter's id."""
    found = {}
    for group in () if optimizer is None else optimizer.param_groups:
        for parameter in group["params"] if "betas" in group else ():
            state = optimizer.state.get(parameter, {})
            second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
            if isinstance(second, Tensor):
                own = number(group["betas"][1]), number(group.get("eps", 0.0))
                found[id(parameter)] = (second, state.get("step"), *own)
    return found


def _histograms(samples: Parts) -> HistogramTable:
    """Of the samples: of a tensor that has more elements, its shape."""
    batch, owners = kernel.batch_of(samples)
    records, bins, *_ = kernel.measure(batch, bins=True)
    del owners
    others = [records[name] for name in ("zeros", "nan", "pos_inf", "neg_inf")]
    at = np.arange(len(samples))
    return HistogramTable(
        at, bins.first_exponents, bins.sizes, bins.counts, np.stack(others, axis=1)
    )


def transform_between(
    pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64], float]],
) -> tuple[Change, float, bool]:
    """What samples became, by the rules of the kernel: by which factor, whether exactly so."""
    if not pairs or all(np.array_equal(was, now, equal_nan=True) for was, now, _ in pairs):
        return (Change.NONE if pairs else Change.UNKNOWN), 1.0, True
    was, now = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    finite = np.isfinite(was) & np.isfinite(now)
    was, now = was[finite], now[finite]
    if not was.any():
        return (Change.CHANGED if now.any() else Change.UNKNOWN), 1.0, False
    factor = float(was @ now / (was @ was))
    tolerance = max(TOLERANCE, *(2.0 * epsilon for _, _, epsilon in pairs))
    rest = float(np.linalg.norm(now - factor * was))
    if factor <= 0.0 or rest > tolerance * float(np.linalg.norm(now)):
        return Change.CHANGED, 1.0, False
    return Change.SCALED, factor, frexp(factor)[0] == 0.5 and np.array_equal(now, factor * was)


# -- for what looks at forward passes --------------------------------------------------------------


def top(tensor: Tensor) -> Tensor:
    """The largest magnitude among a spread sample; not finite where one of them is not."""
    highest: Tensor = torch.linalg.vector_norm(spread(tensor, SAMPLE), inf, dtype=torch.float32)
    return highest


def output_sums(sample: Tensor) -> Tensor:
    """Zeros, elements that are not finite, and of the others: largest magnitude, sum, squares."""
    wide = torch.float32 if sample.device.type == "mps" else torch.float64
    x = sample.detach().to(wide)
    finite = x.isfinite()
    kept = torch.where(finite, x, 0.0)
    sums = [(x == 0).sum(), (~finite).sum(), kept.abs().max(), kept.sum(), (kept * kept).sum()]
    return torch.stack([each.to(wide) for each in sums])
