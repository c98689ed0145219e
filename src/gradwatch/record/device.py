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
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.linalg import norm
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.errors import Exit, GradwatchError
from gradwatch.kernel.plain import transform_between
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.recorder import Call, Found, Late, Meter, Recorder, StepRows
from gradwatch.record.sampler import SMALLEST_CLIP, TOLERANCE, Change
from gradwatch.record.tensors import aligned, local, readable_here, spread
from gradwatch.record.transfer import Parts, Transfer, alike
from gradwatch.stats import Family, State
from gradwatch.stats.rows import moment_rows, update_rows

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
    for device in {each.device for each in parameters} if forced() == TRITON else ():
        if why := hindrance(device):
            text = f"{VARIABLE} asks for {TRITON}, which cannot be had on {device}: {why}."
            raise GradwatchError(f"{text} Unset it, or set it to {TORCH}.", Exit.USAGE)


def hindrance(device: torch.device) -> str:
    """Why Triton cannot measure on this device; "" where it can."""
    try:
        return str(import_module("gradwatch.record.triton").hindrance(device))
    except ImportError as error:
        return f"triton cannot be imported ({error})"


# -- what an engine gives --------------------------------------------------------------------------


class Seen(NamedTuple):
    """What an engine found of a tensor, times the multiplier that was asked for."""

    record: np.void
    """MOMENTS; where the tensor was sampled, counts are extrapolated."""
    whole: bool
    """Whether that describes every element."""
    sample: NDArray[np.float64]
    """At most 4,096 elements."""
    touched: NDArray[np.bool_] | None
    """Which rows hold something other than zeros; None where nobody looked, or there are none."""


Finish = Callable[[Parts, float], Iterable[Seen]]
"""Makes statistics of each tensor, of numbers that have come over and a multiplier."""
Engine = Callable[[list[Tensor], bool, bool], tuple[list[Tensor], Finish]]
"""Measures tensors of one device and type, each as `readable_here` leaves it, and gives small ones
for a `Transfer`. The first flag asks which rows of matrices hold something other than zeros, the
second for mean magnitudes."""


def launch(
    tensors: list[Tensor], rows: bool, engine: Engine
) -> tuple[list[Tensor], Callable[[Parts, float], list[Seen]]]:
    """Measure tensors of any devices and types, those of float64 always with torch's operations."""
    sent = []
    for at in alike(tensors):
        some = [tensors[i] for i in at]
        measure = by_torch if some[0].dtype is torch.float64 else engine
        sent.append((at, *measure(some, rows, rows or len(tensors) <= MANY)))

    def finish(arrived: Parts, multiplier: float) -> list[Seen]:
        take, found = iter(arrived), {}
        for at, parts, done in sent:
            found.update(zip(at, done([next(take) for _ in parts], multiplier), strict=True))
        for seen in found.values():
            seen.record["zero_rows"] = 0 if seen.touched is None else (~seen.touched).sum()
        return [found[i] for i in range(len(found))]

    return [part for _, parts, _ in sent for part in parts], finish


def by_torch(tensors: list[Tensor], rows: bool, absolute: bool) -> tuple[list[Tensor], Finish]:
    """The `Engine` for every device: norms of what is larger than its sample."""
    sizes = np.array([tensor.numel() for tensor in tensors])
    lengths = [len(tensor) if rows and tensor.dim() > 1 else 0 for tensor in tensors]
    # None of them is empty: of such a one `_foreach_norm` gives wrong norms (pytorch #140066).
    large, orders = np.flatnonzero(sizes > SAMPLE).tolist(), (2, inf, 1)[: 2 + absolute]
    some = [tensors[i] for i in large]
    # In their own type sums of 16-bit numbers would overflow or be rounded.
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    parts = [spread(tensor, SAMPLE) for tensor in tensors]
    for order in orders if some else ():
        parts += torch._foreach_norm(some, order, dtype=wide)
    for matrix in (tensors[i] for i in large if lengths[i]):
        dims = tuple(range(1, matrix.dim()))
        parts.append(torch.linalg.vector_norm(matrix, inf, dim=dims, dtype=wide))

    def finish(arrived: Parts, multiplier: float) -> Iterable[Seen]:
        take = iter(arrived)
        samples = [next(take) * multiplier for _ in sizes]
        norms = [[next(take)[0] * multiplier for _ in large] for _ in orders]
        records = kernel.measure_arrays(samples)
        records[large] = _extended(records[large], sizes[large], *map(np.array, norms))
        touched: list[NDArray[np.bool_] | None] = [None] * len(sizes)
        for i in np.flatnonzero(sizes * lengths).tolist():
            top = next(take) if sizes[i] > SAMPLE else samples[i]
            touched[i] = top.reshape(lengths[i], -1).any(axis=1)
        return map(Seen, records, sizes <= SAMPLE, samples, touched)

    return parts, finish


def _extended(
    records: NDArray[np.void], sizes: NDArray[np.int64], two: Any, top: Any, one: Any = nan
) -> NDArray[np.void]:
    """From samples to whole tensors: counts by their share, three norms as they were measured."""
    share = sizes / records["count"]
    for name in ("zeros", "nan", "pos_inf", "neg_inf"):
        records[name] = np.rint(records[name] * share)
    records["nan"] = np.maximum(records["nan"], np.isnan(top))
    records["pos_inf"] += np.isinf(top) & (records["pos_inf"] + records["neg_inf"] == 0)
    finite, mean = np.isfinite(top), one / sizes
    # Where something is not finite the finite part of the sample stands, as it does where squares
    # leave the range of float32.
    squares = finite & np.isfinite(two) & ((top == 0) | (top > LEAST))
    records["norm"] = np.where(squares, two, records["norm"] * np.sqrt(share))
    records["abs_mean"] = np.where(finite & ~np.isinf(mean), mean, records["abs_mean"])
    records["abs_max"] = np.where(finite, top, records["abs_max"])
    records["count"] = sizes
    return records


# -- one optimizer's parameters --------------------------------------------------------------------

_NO_ROWS: NDArray[np.uint64] = np.zeros(0, np.uint64)
_Done = Callable[[Parts, float], tuple[StepRows, dict[int, Seen]]]
"""Makes the rows of a family, with what was seen of each tensor."""


class DeviceMeter(Meter):
    """Measures parameters that lie on one or several devices.

    What others do to weights between two steps is not looked for there.
    """

    def __init__(self, tracked: TrackedOptimizer, recorder: Recorder) -> None:
        self._tracked = tracked
        self._recorder = recorder
        self._engine: Engine = by_torch
        if forced() == TRITON:
            self._engine = import_module("gradwatch.record.triton").by_triton
        self._turn = 0
        self._memory: dict[int, tuple[NDArray[Any], ...]] = {}
        """Of each gradient the last sample, in which of the last 64 looks its rows were touched,
        one bit each, and whether they ever were."""
        self._before: Transfer | None = None
        self._void = -1
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def gradients(self, call: Call) -> None:
        """Launch their statistics; scaling and clipping are undone when the numbers have come."""
        tracked, step, own = self._tracked, call.plan.step, call.tracked is self._tracked
        look, self._turn = self._turn % TURNS == 0, self._turn + 1
        _, sent, done = self._measure(Family.GRAD, step, tracked.gradients(), look)
        # Before its step a fused optimizer's gradients are still scaled.
        optimizer = tracked.optimizer if own and not call.closure else None
        sampler = tracked.sampler
        if optimizer is not None:
            sampler.scaling.meet()
        held = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        parts = [_number(each) for each in (*held, sampler.scaling.tensor)]
        pairs = sampler.pairs() if own else []
        parts += [each for pair in pairs for each in pair]
        epsilons = [torch.finfo(now.dtype).eps for _, now in pairs]

        def finish(arrived: Parts) -> Found:
            found, take = Found(step), iter(arrived)
            # Of a number that is not there the product is 1.
            held, found.skipped, scale = (
                next(take).prod(),
                bool(next(take).any()),
                next(take).prod(),
            )
            compared = [(next(take), next(take), each) for each in epsilons]
            if found.skipped:
                self._void, found.scalars["skipped"] = step, 1.0
                found.nothing(Family.GRAD, tracked.ids, State.SKIPPED_STEP)
                return found
            kind, factor, exact = transform_between(compared)
            if kind == Change.SCALED and held == 1.0:
                factor *= scale
                if abs(factor - 1.0) < TOLERANCE or (exact and factor < SMALLEST_CLIP):
                    factor = 1.0  # only the loss scale was taken out
            if compared and kind in (Change.NONE, Change.SCALED):
                found.scalars["clip_factor"] = factor
            made, seen = done(list(take), 1.0 / (held * factor))
            for i, each in seen.items():
                self._remember(i, each, made.rows[i])
            if kind == Change.CHANGED:
                made.states[list(seen)] = State.CLIPPED
            found.rows.append(made)
            return found

        call.found.late.append(Late(Transfer(parts + sent), finish))

    def weights(self, found: Found, *, histograms: bool) -> None:
        """Launch the statistics of the weights; histograms are taken on the CPU alone."""
        step, weights = found.step, self._tracked.tensors()
        there, sent, done = self._measure(Family.WEIGHT, step, weights, True)
        corners = {i: _corner(t) for i, t in there.items() if t.dim() > 1 and t.numel()}
        at, shapes = list(corners), [corner.shape for corner in corners.values()]
        del there, weights

        def finish(arrived: Parts) -> Found:
            made, seen = done(arrived[len(at) :], 1.0)
            tables = [x.reshape(shape) for x, shape in zip(arrived, shapes, strict=False)]
            batch, _owners = kernel.batch_of(tables)
            made.rows["weight_row_spread"][at] = kernel.row_spread(batch)
            # Equal weights have equal hashes: of the sample and of what all elements give.
            names = ["norm", "abs_mean", "abs_max"]
            told = [np.append(x.sample, [x.record[name] for name in names]) for x in seen.values()]
            batch, _owners = kernel.batch_of(told)
            made.rows["weight_hash"][list(seen)] = kernel.hashes(batch, 0)
            return Found(step, [made])

        found.late.append(Late(Transfer([*corners.values(), *sent]), finish))

    def snapshot(self) -> None:
        """Send samples of the weights as they are now."""
        self._before = Transfer(_samples(self._tracked.tensors()))

    def drop_snapshot(self) -> None:
        """Let them go unused: the step did not come about."""
        self._before = None

    def is_skipped(self) -> bool:
        """Not known before the gradients have come over."""
        return False

    def updates(self, call: Call) -> None:
        """Send samples of what the step left; they are compared on the host, as on the CPU."""
        before, self._before = self._before, None
        if before is None:
            return
        step, ids, weights = call.plan.step, self._tracked.ids, self._tracked.tensors()
        gradients = map(aligned, self._tracked.gradients(), weights)
        after, n = _samples(weights), len(ids)
        sizes = np.array([0 if not len(x) else local(w).numel() for x, w in zip(after, weights)])
        transfer = Transfer([*after, *_samples(gradients)])

        def finish(arrived: Parts) -> Found:
            found = Found(step)
            if self._void == step:
                found.nothing(Family.UPDATE, ids, State.SKIPPED_STEP)
                return found
            given = [kernel.batch_of(x) for x in (before.parts(), arrived[:n], arrived[n:])]
            updates, _ = kernel.step(*(batch for batch, _ in given))
            for name in ("update_norm", "before_norm"):
                updates[name] *= np.sqrt(sizes / np.maximum(given[0][0].counts, 1))
            states = np.where(sizes > SAMPLE, State.SAMPLED, State.MEASURED).astype(np.uint8)
            states[sizes == 0] = State.NO_GRADIENT
            rows = update_rows(updates, states)
            found.rows.append(StepRows(Family.UPDATE, step, ids, rows, states))
            return found

        call.found.late.append(Late(transfer, finish))

    def _measure(
        self, family: Family, step: int, tensors: Sequence[Tensor | None], look: bool
    ) -> tuple[dict[int, Tensor], list[Tensor], _Done]:
        """Which tensors can be measured, what is sent, and what makes rows when it has come."""
        ids, there = self._tracked.ids, {}
        states = np.full(len(ids), State.NO_GRADIENT, np.uint8)
        for i, tensor in enumerate(tensors):
            if tensor is None:
                continue
            if (readable := readable_here(tensor, anywhere=True)) is not None:
                there[i] = readable
                continue
            states[i], what = State.UNSUPPORTED, "gradient" if family == "grad" else family
            self._recorder.report_unreadable(step, what, self._tracked.parameters[i].name)
        at, (parts, finish) = list(there), launch(list(there.values()), look, self._engine)

        def done(arrived: Parts, multiplier: float) -> tuple[StepRows, dict[int, Seen]]:
            seen = dict(zip(at, finish(arrived, multiplier), strict=True))
            records = np.zeros(len(ids), kernel.MOMENTS)
            for i, each in seen.items():
                records[i] = each.record
                states[i] = State.MEASURED if each.whole else State.SAMPLED
            return StepRows(family, step, ids, moment_rows(family, records, states), states), seen

        return there, parts, done

    def _remember(self, key: int, seen: Seen, row: np.void) -> None:
        """Cosine to the gradient before, and for how long rows have been zero."""
        sample, touched = seen.sample, seen.touched
        last, recent, ever = self._memory.get(key, (sample[:0], _NO_ROWS, _NO_ROWS))
        if len(last):
            with np.errstate(all="ignore"):
                row["grad_cosine"] = sample @ last / (norm(sample) * norm(last))
        if touched is not None:
            recent = (recent if len(recent) else np.zeros(len(touched), np.uint64)) << np.uint64(1)
            recent, ever = recent | touched, ever | touched if len(ever) else touched
        self._memory[key] = sample, recent, ever
        # Between two looks at rows the last one stands.
        row["grad_zero_rows"] = np.count_nonzero(recent & np.uint64(1) == 0)
        row["grad_dead_rows"] = np.count_nonzero(recent == 0)
        row["grad_untouched_rows"] = np.count_nonzero(ever == 0)


# -- tensors and numbers ---------------------------------------------------------------------------


def _samples(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Of each that can be read; of the others nothing."""
    plain = (None if each is None else readable_here(each, anywhere=True) for each in tensors)
    return [torch.zeros(0) if each is None else spread(each, SAMPLE) for each in plain]


def _corner(matrix: Tensor) -> Tensor:
    """Up to 17 rows and 64 columns, whose spread stands for that of all rows."""
    rows, inner = len(matrix), matrix.numel() // len(matrix)
    strides = max(1, (rows - 1) // 16) * inner, max(1, inner // 64)
    return matrix.as_strided((min(rows, 17), min(inner, 64)), strides, matrix.storage_offset())


def _number(value: object) -> Tensor:
    """One number that may be on a device, where nobody asks for it; none where there is none."""
    return local(value).reshape(-1)[:1] if isinstance(value, Tensor) else torch.zeros(0)


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
