"""What happened to the gradients between the end of backward and the optimizer.

Clipping, unscaling and left-over gradients happen in the user's loop, where no hook of an optimizer
sees them. Two parameters, the first and the last that get a gradient, carry a hook that runs when
their gradient has been accumulated; the last one also carries one that runs just before. On a step
that will be recorded some fixed elements are kept when backward ends, and compared with what the
optimizer is given.
"""

import inspect
import weakref
from collections.abc import Callable, Sequence
from enum import IntEnum
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradwatch.kernel.plain import Gradients
from gradwatch.record.guard import ErrorGuard, capturing
from gradwatch.record.tensors import (
    KERNEL_DTYPES,
    as_array,
    number,
    on_accelerator,
    readable_here,
    spread,
)

TOLERANCE = 1e-5
SMALLEST_CLIP = 2.0**-10
"""A factor below this is more likely a loss scale than a clipping."""
_DISTRIBUTED = torch.distributed.is_available()
_ELEMENTS = 64


class Change(IntEnum):
    """How the gradient the optimizer gets relates to the one backward made, as the kernel says."""

    NONE = 0
    SCALED = 1
    CHANGED = 2
    UNKNOWN = 3


class Undoing(NamedTuple):
    """What makes the gradients in memory raw again."""

    multiplier: float = 1.0
    clip_factor: float | None = 1.0
    """What they were clipped by; None where that is unknown or no single number."""
    clipped: bool = False
    """They were changed in a way that cannot be undone."""


class LossScaling:
    """The GradScaler of the loop, given or met on its way to the optimizer."""

    def __init__(self, scaler: Any = None) -> None:
        self._ref = weakref.ref(scaler) if scaler is not None else None

    @property
    def known(self) -> bool:
        """Whether there is a scaler, and it is still alive."""
        return self._ref is not None and self._ref() is not None

    def meet(self) -> bool:
        """Look for the scaler that is calling the optimizer's step at this moment."""
        frame = inspect.currentframe()
        for _ in range(16):
            if frame is None or self.known:
                break
            # Only a frame of the scaler's own is asked for what it holds, which is the scaler.
            if frame.f_code in _STEPPING and frame.f_locals["self"].is_enabled():
                self._ref = weakref.ref(frame.f_locals["self"])
            frame = frame.f_back
        return self.known

    @property
    def tensor(self) -> Any:
        """The scale where it lives, which may be an accelerator; None without a scaler."""
        return getattr(self._ref(), "_scale", None) if self._ref is not None else None

    def scale(self) -> float:
        """The present scale; NaN where it is on an accelerator, 1 where there is no scaler."""
        scaler = self._ref() if self._ref is not None else None
        value = getattr(scaler, "_scale", None)
        if value is None:  # a scaler makes the tensor when it first scales a loss
            return number(getattr(scaler, "_init_scale", 1.0)) if scaler is not None else 1.0
        return number(value)

    def has_backed_off(self, since: float | None) -> bool:
        """Whether the scale was lowered since a backward that ran with this one."""
        return since is not None and self.known and not self.scale() >= since

    def undoing(self, kind: Change, factor: float, exact: bool) -> Undoing:
        """What is to be undone, with the loss scale told from clipping."""
        if kind is Change.CHANGED:
            return Undoing(clip_factor=None, clipped=True)
        if kind is not Change.SCALED:
            return Undoing(clip_factor=1.0 if kind is Change.NONE else None)
        suspicious = factor < SMALLEST_CLIP or (exact and factor < 1.0)
        if self.known or (suspicious and self.meet()):
            scale = self.scale()
            if scale != scale:
                return Undoing(clip_factor=None, clipped=True)
            factor *= scale
        elif exact and factor < SMALLEST_CLIP:
            return Undoing()  # a scale of its own, already taken out
        return Undoing() if abs(factor - 1.0) < TOLERANCE else Undoing(1.0 / factor, factor)


_STEPPING = {
    function.__code__ for kind in (GradScaler,) for function in (kind.step, kind._maybe_opt_step)
}


def held_scale(optimizer: Optimizer | None) -> float:
    """What the gradients in memory are still multiplied by: a fused optimizer removes it itself."""
    value = getattr(optimizer, "grad_scale", None)
    return 1.0 if value is None else number(value)


class SampledParameter:
    """One parameter with hooks, and what was seen at it since the optimizer last stepped."""

    __slots__ = (
        "backwards", "discarded", "handles", "index", "ref", "sample", "scale", "version",
    )  # fmt: skip

    def __init__(self, parameter: Tensor, index: int) -> None:
        self.ref = weakref.ref(parameter)
        self.index = index
        self.backwards = 0
        self.discarded = 0
        """Gradients that were cleared before anybody used them."""
        self.version = -1
        self.scale: float | None = None
        """The loss scale of the last backward, where one is known."""
        self.sample: Tensor | None = None
        """On an accelerator; what is on the CPU the kernel keeps."""
        self.handles: list[Any] = []


class GradientSampler:
    """Counts backward passes and samples gradients; reports those that were thrown away."""

    def __init__(
        self,
        guard: ErrorGuard,
        scaling: LossScaling,
        on_backward: Callable[[], None],
        on_thrown_away: Callable[[float | None], None],
    ) -> None:
        self._guard = guard
        self.scaling = scaling
        self._on_backward = on_backward
        self._on_thrown_away = on_thrown_away
        self._kernel: Gradients | None = None
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

    @property
    def missed(self) -> bool:
        """Whether a sampled parameter got no gradient although another did."""
        counts = {sampled.backwards > 0 for sampled in self._sampled}
        return len(counts) > 1

    def scalars(self, into: dict[str, float]) -> None:
        """Backward passes since the optimizer last stepped, and whether gradients were left."""
        if self._sampled:
            into["backwards"] = float(self.passes)
        if self.stale is not None:
            into["stale"] = float(self.stale)

    def choose(self, parameters: Sequence[Tensor | None], kernel: Gradients | None) -> None:
        """Put the hooks on two of these parameters, unless they are there already.

        `kernel` keeps the samples of what is on the CPU, by their place among `parameters`.
        """
        self._kernel = kernel
        able = [i for i, p in enumerate(parameters) if p is not None and _can_be_sampled(p)]
        chosen = [
            (i, p) for i in dict.fromkeys(able[:1] + able[-1:]) if (p := parameters[i]) is not None
        ]
        if [(i, id(p)) for i, p in chosen] == [(s.index, id(s.ref())) for s in self._sampled]:
            return
        self.remove()
        self._sampled = [SampledParameter(parameter, index) for index, parameter in chosen]
        if self._hooked:
            self._mount_all()

    def prepare(self, *, sampling: bool, hooked: bool) -> None:
        """Before a step: whether to keep samples, and whether to have hooks at all."""
        self._sampling = sampling
        if sampling and _DISTRIBUTED:
            self._averaged_late = torch.distributed.is_initialized()
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
        for sampled in self._sampled:
            if (parameter := sampled.ref()) is not None and parameter.requires_grad:
                # The last one: a backward pass comes to it first.
                self._mount(sampled, parameter, watches_start=sampled is self._sampled[-1])

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
        if self._kernel is not None:
            self._kernel.forget()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """On devices: of each sampled parameter, its sample at the end of backward and now."""
        found = []
        for sampled in self._sampled:
            parameter, was = sampled.ref(), sampled.sample
            if was is None or parameter is None or (gradient := parameter.grad) is None:
                continue
            now = spread(gradient, _ELEMENTS)
            if now.dtype is was.dtype and now.shape == was.shape:
                found.append((was, now))
        return found

    def _mount(self, sampled: SampledParameter, parameter: Tensor, *, watches_start: bool) -> None:
        guard, timer = self._guard, self._guard.timer
        before_sum, after_sum = self._before, self._after

        def before(_: Tensor) -> None:
            guard.run(before_sum, sampled)

        def after(parameter: Tensor) -> None:
            if guard.off:
                return
            start = perf_counter()
            try:
                after_sum(sampled, parameter)
            except Exception as error:
                guard.fail(error)
            timer.spent += perf_counter() - start

        # Parameters are pickled and copied without their hooks; torch warns unless told it may.
        before.__torch_unserializable__ = True  # type: ignore[attr-defined]
        if watches_start:
            sampled.handles.append(parameter.register_hook(before))
        sampled.handles.append(parameter.register_post_accumulate_grad_hook(after))

    def _before(self, sampled: SampledParameter) -> None:
        """A gradient is about to be added to this parameter."""
        parameter = sampled.ref()
        if parameter is None:
            return
        if sampled.backwards == 0:
            if self._sampling and self.stale is None:
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
        elif self.left_over is None and not capturing():
            self.left_over = spread(gradient, _ELEMENTS).clone()

    def _after(self, sampled: SampledParameter, parameter: Tensor) -> None:
        """This parameter's gradient is complete, but for an average over ranks."""
        gradient = parameter.grad
        if gradient is None:
            return  # none is left where the user steps inside backward
        sampled.backwards += 1
        sampled.version = parameter._version  # the next pass finds another if a step was made
        if self.scaling._ref is not None:
            sampled.scale = self.scaling.scale()
        self._on_backward()
        if not self._sampling:
            return
        if self._averaged_late:
            # DDP queues its own callback when its last bucket is filled, maybe after this one: a
            # callback that queues another runs behind all those.
            _after_backward(lambda: _after_backward(lambda: self._guard.run(self._keep, sampled)))
        else:
            self._keep(sampled)

    def _keep(self, sampled: SampledParameter) -> None:
        if self._kernel is not None and self._kernel.sample(sampled.index):
            return
        parameter = sampled.ref()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or not on_accelerator(gradient) or capturing():
            return
        if gradient.layout is torch.strided:
            # A copy: the loop may change the gradient in place before it is compared.
            sampled.sample = spread(gradient, _ELEMENTS).clone()


def _can_be_sampled(parameter: Tensor) -> bool:
    return (
        parameter.requires_grad
        and parameter.is_leaf
        and parameter.dtype in KERNEL_DTYPES
        and parameter.device.type != "meta"
        and parameter.numel() > 0
    )


def _is_cleared(gradient: Tensor | None) -> bool:
    """No gradient, or zeros where we look; an accelerator only shows the former."""
    if gradient is None:
        return True
    if on_accelerator(gradient) or (values := readable_here(spread(gradient, _ELEMENTS))) is None:
        return False
    return not as_array(values).any()


def _after_backward(action: Callable[[], None]) -> None:
    """Run when the backward pass that is running has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
