"""Parameters on accelerators: measured there by few operations of torch's, finished on the host.

Norm, mean magnitude and largest magnitude come from `torch._foreach_norm` and are exact, as is
whether everything is finite. All else is told by at most 4,096 evenly spread elements of each
tensor, which the kernel measures once they have come over; smaller tensors come over whole. The
training never waits for a number, and what waits for numbers keeps no tensor alive.
GRADWATCH_DEVICE_ENGINE=torch measures tensors of the CPU in this way too, =triton measures with
Triton's kernel (`record.triton`), which reads every element once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
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
from gradwatch.record.sampler import Change
from gradwatch.record.tensors import aligned, on_accelerator, readable_here, spread
from gradwatch.record.transfer import Parts, Transfer, alike
from gradwatch.stats import HAS_VALUE, Family, State
from gradwatch.stats.rows import moment_rows, update_rows

VARIABLE = "GRADWATCH_DEVICE_ENGINE"
TORCH, TRITON = "torch", "triton"
SAMPLE = 4096
"""Elements of each tensor that come over; of smaller ones all."""
TURNS = 4
"""Recorded steps from one look at the rows of gradients to the next."""
MANY = 256
"""Of more tensors of a type the mean magnitude is taken only where rows are looked at: a CUDA
stream holds about 1,000 launches, and a third norm of 7 billion parameters would fill it."""


# -- which engine measures -------------------------------------------------------------------------


def forced() -> str | None:
    """The engine the environment asks for, known or not."""
    return os.environ.get(VARIABLE, "").lower() or None


def check_forced(parameters: Iterable[Tensor]) -> None:
    """GradwatchError where the environment asks for an engine that cannot be had."""
    asked, devices = forced(), {parameter.device for parameter in parameters}
    why = "" if asked in (None, TORCH, TRITON) else "there is no such engine"
    for device in devices if asked == TRITON else ():
        why = why or hindrance(device)
    if why:
        text = f"{VARIABLE} asks for {asked!r}, which cannot be had: {why}."
        raise GradwatchError(f"{text} Unset it, or set it to {TORCH} or {TRITON}.", Exit.USAGE)


def hindrance(device: torch.device) -> str:
    """Why Triton cannot measure on this device; "" where it can."""
    try:
        return str(import_module(f"{__package__}.{TRITON}").hindrance(device))
    except ImportError as error:
        return f"triton cannot be imported ({error})"


def device_engines(parameters: Iterable[Tensor]) -> dict[str, str]:
    """What measures on which device, beside the CPU, as `run.info["engines"]` has it."""
    devices = {each.device for each in parameters if on_accelerator(each) or forced()}
    return {str(device): forced() or TORCH for device in devices}


# -- engines ---------------------------------------------------------------------------------------


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


Take = Iterator[NDArray[np.float64]]
"""Numbers that have come over: of each tensor that was sent, in this order."""
Finish = Callable[[Take, float], Iterable[Seen]]
"""Takes its numbers, and makes statistics of each tensor, times a multiplier."""
Engine = Callable[[list[Tensor], bool], tuple[list[Tensor], Finish]]
"""Measures tensors of one device and type, each as `readable_here` leaves it, and gives small ones
for a `Transfer`. The flag asks which rows of matrices hold something other than zeros."""


def by_torch(tensors: list[Tensor], rows: bool) -> tuple[list[Tensor], Finish]:
    """The `Engine` for every device: norms of what is larger than its sample."""
    sizes = np.array([tensor.numel() for tensor in tensors])
    lengths = [len(x) if rows and x.dim() > 1 and x.numel() else 0 for x in tensors]
    # None of them is empty: of such a one `_foreach_norm` gives wrong norms (pytorch #140066).
    large = np.flatnonzero(sizes > SAMPLE).tolist()
    some = [tensors[i] for i in large]
    orders = (2, 1) if rows or len(tensors) <= MANY else (2,)
    # In their own type sums of 16-bit numbers would overflow or be rounded.
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    parts = [spread(tensor, SAMPLE) for tensor in tensors]
    for order in orders if some else ():
        parts += torch._foreach_norm(some, order, dtype=wide)
    for each in some if rows else ():
        # The largest of every row tells the largest of all, too.
        dims = tuple(range(1, each.dim())) or None
        parts.append(torch.linalg.vector_norm(each, np.inf, dim=dims, dtype=wide))
    if some and not rows:
        parts += torch._foreach_norm(some, np.inf, dtype=wide)

    def finish(take: Take, multiplier: float) -> Iterable[Seen]:
        samples = [next(take) * multiplier for _ in sizes]
        norms = [np.array([next(take)[0] for _ in large]) * multiplier for _ in orders]
        records = kernel.measure_arrays(samples)
        tops = {i: next(take) for i in large}
        top = np.array([each.max() for each in tops.values()]) * multiplier
        records[large] = _extended(records[large], sizes[large], top, *norms)
        touched: list[Any] = [None] * len(sizes)
        for i in np.flatnonzero(lengths).tolist():
            touched[i] = tops.get(i, samples[i]).reshape(lengths[i], -1).any(axis=1)
        return map(Seen, records, sizes <= SAMPLE, samples, touched)

    return parts, finish


def _extended(records: Any, sizes: Any, top: Any, two: Any, one: Any = np.nan) -> Any:
    """From samples to whole tensors: the share of zeros, and norms as they were measured."""
    share, mean, finite = sizes / records["count"], one / sizes, np.isfinite(top)
    records["zeros"] = np.rint(records["zeros"] * share)
    records["nan"] = np.maximum(records["nan"], np.isnan(top))
    records["pos_inf"] += np.isinf(top) & (records["pos_inf"] + records["neg_inf"] == 0)
    # Where something is not finite the finite part of the sample stands, as it does where squares,
    # also of the elements that matter beside the largest, leave the range of float32.
    squares = finite & np.isfinite(two) & ((top == 0) | (top > 1e-15))
    records["norm"] = np.where(squares, two, records["norm"] * np.sqrt(share))
    records["abs_mean"] = np.where(finite & ~np.isinf(mean), mean, records["abs_mean"])
    records["abs_max"] = np.where(finite, top, records["abs_max"])
    records["count"] = sizes
    return records


# -- one optimizer's parameters --------------------------------------------------------------------

_Rows = Callable[[Take, float], tuple[StepRows, dict[int, Seen]]]
"""Makes the rows of a family, and says what was seen of each tensor."""


class DeviceMeter(Meter):
    """Measures parameters that lie on one or several devices.

    What others do to weights between two steps is not looked for there, and a snapshot is numbers
    on the host: nothing has to drop it.
    """

    def __init__(self, tracked: TrackedOptimizer, recorder: Recorder) -> None:
        self._tracked = tracked
        self._recorder = recorder
        self._engine: Engine = by_torch
        if forced() == TRITON:
            self._engine = import_module(f"{__package__}.{TRITON}").by_triton
        self._turn = 0
        self._last: dict[int, NDArray[np.float64]] = {}
        """The sample of each gradient recorded before."""
        self._rows: dict[int, NDArray[np.uint64]] = {}
        """Of each row in which of the last 64 looks it was touched, a bit each, and in any."""
        self._before = Transfer([])
        self._void = -1
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def gradients(self, call: Call) -> None:
        """Launch their statistics; scaling and clipping are undone when the numbers have come."""
        tracked, step, own = self._tracked, call.plan.step, call.tracked is self._tracked
        look, self._turn = self._turn % TURNS == 0, self._turn + 1
        _, sent, done = self._measure(Family.GRAD, step, tracked.gradients(), look)
        # Before its step a fused optimizer's gradients are still scaled.
        optimizer = tracked.optimizer if own and not call.closure else None
        scaling = tracked.sampler.scaling
        scaling.meet()
        numbers = [getattr(optimizer, name, None) for name in ("grad_scale", "found_inf")]
        parts = [_sample(number) for number in (*numbers, scaling.tensor)]
        pairs = tracked.sampler.pairs() if own else []
        parts += [each for pair in pairs for each in pair]
        epsilons = [torch.finfo(now.dtype).eps for _, now in pairs]

        def finish(arrived: Parts) -> Found:
            take = iter(arrived)
            # The product of no number is 1.
            held, overflow, scale = next(take).prod(), next(take).any(), next(take).prod()
            compared = [(next(take), next(take), each) for each in epsilons]
            if overflow:
                self._void, found = step, Found(step, scalars={"skipped": 1.0}, skipped=True)
                return found.nothing(Family.GRAD, tracked.ids, State.SKIPPED_STEP)
            kind, factor, exact = transform_between(compared)
            if kind == Change.SCALED:
                factor = scaling.clip_factor(factor, exact, scale if held == 1.0 else 1.0)
            scalars = {"clip_factor": factor} if compared and kind < Change.CHANGED else {}
            made, seen = done(take, 1.0 / (held * factor))
            for i, each in seen.items():
                self._remember(i, each, made.rows[i])
            if kind == Change.CHANGED:
                made.states[list(seen)] = State.CLIPPED
            return Found(step, [made], scalars=scalars)

        call.found.late.append(Late(Transfer(parts + sent), finish))

    def weights(self, found: Found, *, histograms: bool) -> None:
        """Launch the statistics of the weights; histograms are taken on the CPU alone."""
        weights = self._tracked.tensors()
        there, sent, done = self._measure(Family.WEIGHT, found.step, weights, look=True)
        corners = {i: _corner(t) for i, t in there.items() if t.dim() > 1 and t.numel()}
        at, shapes = list(corners), [corner.shape for corner in corners.values()]

        def finish(arrived: Parts) -> Found:
            take = iter(arrived)
            tables = [next(take).reshape(shape) for shape in shapes]
            made, _ = done(take, 1.0)
            batch, _owners = kernel.batch_of(tables)
            made.rows["weight_row_spread"][at] = kernel.row_spread(batch)
            # Equal weights have equal statistics, to the bit: their hash stands for one of all.
            batch, _owners = kernel.batch_of([np.frombuffer(row, np.uint8) for row in made.rows])
            made.rows["weight_hash"] = kernel.hashes(batch, 0) * HAS_VALUE[made.states]
            return Found(made.step, [made])

        found.late.append(Late(Transfer([*corners.values(), *sent]), finish))

    def snapshot(self) -> None:
        """Send samples of the weights as they are now."""
        self._before = Transfer([_sample(_readable(x)) for x in self._tracked.tensors()])

    def updates(self, call: Call) -> None:
        """Send samples of what the step left; they are compared on the host, as on the CPU."""
        before, step, ids = self._before, call.plan.step, self._tracked.ids
        weights = list(map(_readable, self._tracked.tensors()))
        gradients = map(aligned, map(_readable, self._tracked.gradients()), weights)
        sizes = np.array([0 if weight is None else weight.numel() for weight in weights])
        pairs = zip(weights, gradients, strict=True)
        sent = Transfer([_sample(each) for pair in pairs for each in pair])

        def finish(arrived: Parts) -> Found:
            if self._void == step:
                return Found(step).nothing(Family.UPDATE, ids, State.SKIPPED_STEP)
            given = [kernel.batch_of(x) for x in (before.parts(), arrived[::2], arrived[1::2])]
            updates, _ = kernel.step(*(batch for batch, _ in given))
            for name in ("update_norm", "before_norm"):
                updates[name] *= np.sqrt(sizes / np.maximum(given[0][0].counts, 1))
            states = np.where(sizes > SAMPLE, State.SAMPLED, State.MEASURED).astype(np.uint8)
            states[sizes == 0] = State.NO_GRADIENT
            rows = update_rows(updates, states)
            return Found(step, [StepRows(Family.UPDATE, step, ids, rows, states)])

        call.found.late.append(Late(sent, finish))

    def _measure(
        self, family: Family, step: int, tensors: Sequence[Tensor | None], look: bool
    ) -> tuple[dict[int, Tensor], list[Tensor], _Rows]:
        """Which tensors can be measured, what is sent, and what makes rows when it has come."""
        ids, there = self._tracked.ids, {}
        states = np.full(len(ids), State.NO_GRADIENT, np.uint8)
        for i, tensor in enumerate(tensors):
            if (readable := _readable(tensor)) is not None:
                there[i] = readable
            elif tensor is not None:
                states[i], what = State.UNSUPPORTED, "gradient" if family == "grad" else family
                self._recorder.report_unreadable(step, what, self._tracked.parameters[i].name)
        sent, jobs = [], []
        for some in alike(there.items()):
            wide = next(iter(some.values())).dtype is torch.float64
            parts, finish = (by_torch if wide else self._engine)(list(some.values()), look)
            jobs.append((list(some), finish))
            sent += parts

        def done(take: Take, multiplier: float) -> tuple[StepRows, dict[int, Seen]]:
            seen: dict[int, Seen] = {}
            records = np.zeros(len(ids), kernel.MOMENTS)
            for at, finish in jobs:
                seen.update(zip(at, finish(take, multiplier), strict=True))
            for i, each in seen.items():
                records[i] = each.record
                states[i] = State.MEASURED if each.whole else State.SAMPLED
                if each.touched is not None:
                    records["zero_rows"][i] = np.count_nonzero(~each.touched)
            return StepRows(family, step, ids, moment_rows(family, records, states), states), seen

        return there, sent, done

    def _remember(self, key: int, seen: Seen, row: np.void) -> None:
        """Cosine to the gradient before, and for how long rows have been zero."""
        last, self._last[key] = self._last.get(key), seen.sample
        if last is not None:
            with np.errstate(all="ignore"):
                row["grad_cosine"] = seen.sample @ last / (norm(seen.sample) * norm(last))
        if seen.touched is not None:
            words = self._rows.setdefault(key, np.zeros((2, len(seen.touched)), np.uint64))
            words[0] <<= np.uint64(1)
            words |= seen.touched
        if key in self._rows:  # between two looks the last one stands
            recent, ever = self._rows[key]
            for name, words in (("zero", recent & 1), ("dead", recent), ("untouched", ever)):
                row[f"grad_{name}_rows"] = np.count_nonzero(words == 0)


# -- tensors and numbers ---------------------------------------------------------------------------


def _readable(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else readable_here(tensor, anywhere=True)


def _sample(tensor: Any) -> Tensor:
    """Its sample, or its one number; nothing of what is no tensor."""
    return spread(tensor, SAMPLE) if isinstance(tensor, Tensor) else torch.zeros(0)


def _corner(matrix: Tensor) -> Tensor:
    """Up to 17 rows and some 64 columns, whose spread stands for that of all rows."""
    rows = matrix[:: max(1, (len(matrix) - 1) // 16)][:17].flatten(1)
    return rows[:, :: max(1, rows.shape[1] // 64)]


# -- for what looks at forward passes --------------------------------------------------------------


def top(tensor: Tensor) -> Tensor:
    """The largest magnitude among a spread sample; not finite where one of them is not."""
    highest: Tensor = torch.linalg.vector_norm(spread(tensor, SAMPLE), np.inf, dtype=torch.float32)
    return highest


def output_sums(sample: Tensor) -> Tensor:
    """Zeros, elements that are not finite, and of the others: largest magnitude, sum, squares."""
    x = sample.detach().to(torch.float32 if sample.is_mps else torch.float64)
    finite = x.isfinite()
    kept = torch.where(finite, x, 0.0)
    sums = [(x == 0).sum(), (~finite).sum(), kept.abs().max(), kept.sum(), (kept * kept).sum()]
    return torch.stack(sums)
