"""What happened to the gradients between the end of backward and the optimizer.

Clipping, unscaling and left-over gradients happen in the user's loop, where no hook of an optimizer
sees them. Up to four parameters (first, last, the two largest) carry a hook that runs when their
gradient has been accumulated; two of them carry one that runs just before. On a step that will be
recorded, 64 fixed coordinates are kept when backward ends, and compared with what the optimizer is
given.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.guard import ErrorGuard
from gradwatch.record.rows import FamilyRows
from gradwatch.record.tensors import (
    KERNEL_DTYPES,
    as_array,
    fixed_coordinates,
    local,
    sample_bits,
)
from gradwatch.stats import State
from gradwatch.stats.rows import mirrored

TOLERANCE = 1e-5
_DISTRIBUTED = torch.distributed.is_available()
_MOST_SAMPLED = 4
_COORDINATES = 64
_EPSILON = {dtype: torch.finfo(dtype).eps for dtype in KERNEL_DTYPES}

Sample = bytes | Tensor
"""A gradient at its fixed coordinates: the bits of an ordinary tensor of the CPU, or a tensor."""
SamplePair = tuple[NDArray[np.floating], NDArray[np.floating], float]
"""A sample at the end of backward, the same coordinates now, and the type's epsilon."""


class TransformKind(Enum):
    """How the gradient the optimizer gets relates to the one backward made."""

    NONE = "none"
    SCALED = "scaled"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class GradTransform:
    """`factor` is gradient now ÷ gradient at the end of backward; 1 where nothing is known."""

    kind: TransformKind
    factor: float = 1.0
    exact: bool = True
    """The factor is a power of two and holds to the bit: what removing a loss scale looks like."""

    @property
    def undoable(self) -> bool:
        """Whether the raw gradient can be computed from what is in memory."""
        return self.kind is not TransformKind.CHANGED

    def unscaled(self, scale: float) -> "GradTransform":
        """The same with a loss scale taken out that was removed after backward."""
        factor = self.factor * scale
        if self.kind is not TransformKind.SCALED:
            return self
        return UNTOUCHED if abs(factor - 1.0) < TOLERANCE else replace(self, factor=factor)


UNTOUCHED = GradTransform(TransformKind.NONE)
UNKNOWN = GradTransform(TransformKind.UNKNOWN)
CHANGED = GradTransform(TransformKind.CHANGED, exact=False)


def transform_between(pairs: Sequence[SamplePair]) -> GradTransform:
    """Equal: none. Proportional, by one factor everywhere: scaled. Otherwise changed."""
    if all(np.array_equal(was, now, equal_nan=True) for was, now, _ in pairs):
        return UNTOUCHED
    factors, tolerances, exact = [], [], True
    for was, now, epsilon in pairs:
        finite = np.isfinite(was) & np.isfinite(now)
        before = was[finite].astype(np.float64)
        after = now[finite].astype(np.float64)
        square = float(before @ before)
        if square == 0.0:
            if after.any():
                return CHANGED
            continue
        factor = float(before @ after) / square
        tolerance = max(TOLERANCE, 2.0 * epsilon)
        rest = float(np.linalg.norm(after - factor * before))
        if factor <= 0.0 or rest > tolerance * float(np.linalg.norm(after)):
            return CHANGED
        factors.append(factor)
        tolerances.append(tolerance)
        exact = exact and _is_power_of_two(factor) and np.array_equal(after, factor * before)
    if not factors:
        return UNKNOWN
    if max(factors) / min(factors) - 1.0 > max(tolerances):
        return CHANGED
    return GradTransform(TransformKind.SCALED, float(np.median(factors)), exact)


def _is_power_of_two(value: float) -> bool:
    return bool(np.frexp(value)[0] == 0.5)


def clip_scalars(
    gradients: FamilyRows, transform: GradTransform, suspects: int = 2
) -> dict[str, float]:
    """The factor gradients were clipped by, where one says it all; those cut off are marked.

    `suspects` says how many gradients are mirrored, where that is known: of one alone nobody can
    tell that it was cut.
    """
    cut = suspects > 1 and transform.undoable and _mark_cut(gradients)
    if transform.kind in (TransformKind.NONE, TransformKind.SCALED) and not cut:
        return {"clip_factor": transform.factor}
    return {}


def _mark_cut(gradients: FamilyRows) -> bool:
    """Mark gradients cut off at a value, which a sample may have missed; whether there are any.

    Where several tensors have the same largest and, negated, smallest element, to the bit, they
    were cut there; no two gradients agree in both by chance.
    """
    rows, states = gradients.rows, gradients.states
    top, both = rows["grad_abs_max"], mirrored(rows)
    limits, counts = np.unique(top[both], return_counts=True)
    if not (counts > 1).any():
        return False
    cut = np.isin(top, limits[counts > 1]) & (states == State.MEASURED)
    states[cut] = State.CLIPPED
    return True


class SampledParameter:
    """One parameter with hooks, and what was seen at it since the optimizer last stepped."""

    def __init__(self, parameter: Tensor) -> None:
        self.ref = weakref.ref(parameter)
        self.backwards = 0
        self.discarded = 0
        """Gradients that were cleared before anybody used them."""
        self.version = -1
        self.scale: float | None = None
        """The loss scale of the last backward, where one is known."""
        self.sample: Sample | None = None
        self.dtype: torch.dtype | None = None
        """Of the sample."""
        self.handles: list[Any] = []


class GradientSampler:
    """Counts backward passes and samples gradients; reports those that were thrown away."""

    def __init__(
        self,
        guard: ErrorGuard,
        on_backward: Callable[[], None],
        on_thrown_away: Callable[[float | None], None],
        scale: Callable[[], float | None],
    ) -> None:
        self._guard = guard
        self._on_backward = on_backward
        self._on_thrown_away = on_thrown_away
        self._scale = scale
        self._sampled: list[SampledParameter] = []
        self._sampling = False
        self._hooked = True
        self.stale: bool | None = None
        """Whether gradients of earlier steps were left when the first backward began."""
        self.left_over: Tensor | None = None
        """On an accelerator, what was there before the first backward: stale unless it is zero."""
        self._averaged_late = False
        """True under DDP: gradients are averaged only after the hooks have run."""

    @property
    def passes(self) -> int:
        """Backward passes since the optimizer last stepped."""
        return max([sampled.backwards for sampled in self._sampled], default=0)

    @property
    def discarded(self) -> int:
        """How many of them were cleared unused."""
        return max([sampled.discarded for sampled in self._sampled], default=0)

    def parameters(self) -> list[Tensor]:
        """The parameters that are sampled."""
        return [p for sampled in self._sampled if (p := sampled.ref()) is not None]

    def scalars(self) -> dict[str, float]:
        """Backward passes since the optimizer last stepped, and whether gradients were left."""
        scalars: dict[str, float] = {}
        if self._sampled:
            scalars["backwards"] = float(self.passes)
        if self.stale is not None:
            scalars["stale"] = float(self.stale)
        return scalars

    def choose(self, parameters: Sequence[Tensor]) -> None:
        """Put the hooks on some of these parameters, unless they are there already."""
        chosen = _choose(parameters)
        if [id(p) for p in chosen] == [id(sampled.ref()) for sampled in self._sampled]:
            return
        self.remove()
        self._sampled = [SampledParameter(parameter) for parameter in chosen]
        if self._hooked:
            self._mount_all()

    def prepare(self, *, sampling: bool, hooked: bool) -> None:
        """Before a step: whether to keep samples, and whether to have hooks at all."""
        self._sampling = sampling
        if sampling and self._sampled:
            self._averaged_late = _DISTRIBUTED and torch.distributed.is_initialized()
        if hooked is not self._hooked:
            self._hooked = hooked
            if hooked:
                self._mount_all()
            else:
                self._unmount_all()

    def remove(self) -> None:
        """Take every hook away, for good."""
        self._unmount_all()
        self._sampled = []

    def _mount_all(self) -> None:
        for index, sampled in enumerate(self._sampled):
            if (parameter := sampled.ref()) is not None and parameter.requires_grad:
                # The last ones: a backward pass comes to them first.
                self._mount(sampled, parameter, watches_start=index >= len(self._sampled) - 2)

    def _unmount_all(self) -> None:
        for sampled in self._sampled:
            for handle in sampled.handles:
                handle.remove()
            sampled.handles.clear()

    def stepped(self) -> None:
        """The optimizer has stepped: what comes now belongs to the next step."""
        self.stale = self.left_over = None
        for sampled in self._sampled:
            sampled.backwards = sampled.discarded = 0
            sampled.sample = None

    def transform(self) -> GradTransform:
        """Compare what backward left with what the gradients are now."""
        pairs = [p for p in self._pairs() if isinstance(p[1], bytes) or p[1].is_cpu]
        if not pairs:
            return UNKNOWN if self._sampled else UNTOUCHED
        if all(are_equal(was, now) for was, now, _ in pairs):
            return UNTOUCHED  # by far the most frequent case
        return transform_between(
            [
                (as_array(_tensor(was, dtype)), as_array(_tensor(now, dtype)), _EPSILON[dtype])
                for was, now, dtype in pairs
            ]
        )

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Of each sampled parameter, its sample at the end of backward and the same one now."""
        return [(_tensor(was, dtype), _tensor(now, dtype)) for was, now, dtype in self._pairs()]

    def _pairs(self) -> list[tuple[Sample, Sample, torch.dtype]]:
        pairs = []
        for sampled in self._sampled:
            parameter, was = sampled.ref(), sampled.sample
            if was is None or parameter is None or (gradient := parameter.grad) is None:
                continue
            now, dtype = sample(gradient), gradient.dtype
            if now is not None and dtype is sampled.dtype:
                pairs.append((was, now, dtype))
        return pairs

    def _mount(self, sampled: SampledParameter, parameter: Tensor, *, watches_start: bool) -> None:
        guard = self._guard

        def before(_: Tensor) -> None:
            guard.run(self._before, sampled)

        def after(_: Tensor) -> None:
            guard.run(self._after, sampled)

        # Parameters are pickled and copied without their hooks; torch warns unless told it may.
        before.__torch_unserializable__ = True  # type: ignore[attr-defined]
        if watches_start:
            sampled.handles.append(parameter.register_hook(before))
        handle = parameter.register_post_accumulate_grad_hook(after)
        sampled.handles.append(handle)

    def _before(self, sampled: SampledParameter) -> None:
        """A gradient is about to be added to this parameter."""
        parameter = sampled.ref()
        if parameter is None or (sampled.backwards == 0 and self.stale is not None):
            return
        if sampled.backwards == 0:
            if self._sampling:
                self._look_for_left_over(parameter.grad)
            return
        # A second pass without a step in between: accumulation, unless the first was thrown away.
        # torch counts in `_version` how often a tensor was changed in place: by a step it was.
        if parameter._version == sampled.version and _is_cleared(parameter.grad):
            sampled.discarded += 1
            # What was left is gone too, so nobody forgot it: a generator's loss leaves gradients in
            # the discriminator, which clears them before its own backward.
            if self._sampling:
                self.stale, self.left_over = False, None
            self._on_thrown_away(sampled.scale)

    def _look_for_left_over(self, gradient: Tensor | None) -> None:
        """Whether something is left of earlier steps, before the first backward of this one."""
        if gradient is None or gradient.is_cpu:
            self.stale = not _is_cleared(gradient)
        elif self.left_over is None:
            self.left_over = _take(local(gradient).detach())

    def _after(self, sampled: SampledParameter) -> None:
        """This parameter's gradient is complete, but for an average over ranks."""
        parameter = sampled.ref()
        if parameter is None or (gradient := parameter.grad) is None:
            return  # none is left where the user steps inside backward
        sampled.backwards += 1
        sampled.version = parameter._version  # the next pass finds another if a step was made
        sampled.scale = self._scale()
        self._on_backward()
        if not self._sampling:
            return
        if self._averaged_late:
            # DDP queues its own callback when its last bucket is filled, maybe after this one: a
            # callback that queues another runs behind all those.
            _after_backward(lambda: _after_backward(lambda: self._guard.run(self._keep, sampled)))
        else:
            sampled.sample, sampled.dtype = sample(gradient), gradient.dtype

    def _keep(self, sampled: SampledParameter) -> None:
        parameter = sampled.ref()
        if parameter is not None and (gradient := parameter.grad) is not None:
            sampled.sample, sampled.dtype = sample(gradient), gradient.dtype


def _choose(parameters: Sequence[Tensor]) -> list[Tensor]:
    able = [p for p in parameters if _can_be_sampled(p)]
    if len(able) <= _MOST_SAMPLED:
        return able
    largest = sorted(able[1:-1], key=lambda p: -p.numel())[: _MOST_SAMPLED - 2]
    kept = {id(p) for p in (able[0], able[-1], *largest)}
    return [p for p in able if id(p) in kept]


def _can_be_sampled(parameter: Tensor) -> bool:
    return (
        parameter.requires_grad
        and parameter.is_leaf
        and parameter.dtype in KERNEL_DTYPES
        and parameter.device.type != "meta"
        and parameter.numel() > 0
    )


def sample(gradient: Tensor) -> Sample | None:
    """The gradient at the fixed coordinates; None where it cannot be read."""
    bits = sample_bits(gradient, _COORDINATES)
    return bits if bits is not None else _take(local(gradient).detach())


def _take(gradient: Tensor) -> Tensor | None:
    if gradient.layout is not torch.strided or not gradient.numel():
        return None
    # `take` copies: the loop may change the gradient in place before it is compared.
    return gradient.take(fixed_coordinates(gradient.numel(), _COORDINATES, gradient.device))


def _tensor(values: Sample, dtype: torch.dtype) -> Tensor:
    if isinstance(values, Tensor):
        return values
    return torch.frombuffer(bytearray(values), dtype=dtype)


def are_equal(was: Sample, now: Sample) -> bool:
    """Whether two samples agree to the bit; of tensors on a device this waits for it."""
    if isinstance(was, bytes) or isinstance(now, bytes):
        return was == now
    return torch.equal(was, now)


def _is_cleared(gradient: Tensor | None) -> bool:
    """No gradient, or zeros at the fixed coordinates; an accelerator only shows the former."""
    if gradient is None:
        return True
    if not gradient.is_cpu:
        return False
    values = sample(gradient)
    if isinstance(values, bytes) and not values.strip(b"\0"):
        return True
    return values is not None and not as_array(_tensor(values, gradient.dtype)).any()


def _after_backward(action: Callable[[], None]) -> None:
    """Run when the backward pass that is running has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
