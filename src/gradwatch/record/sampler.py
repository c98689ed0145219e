"""What happened to the gradients between the end of backward and the optimizer.

Clipping, unscaling and left-over gradients happen in the user's loop, where no hook of an optimizer
sees them. Two parameters, the first and the last that get a gradient, carry a hook that runs when
their gradient has been accumulated; the last one also carries one that runs just before. On a step
that will be recorded some fixed elements are kept when backward ends, and compared with what the
optimizer is given.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import islice
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from gradwatch.kernel.plain import Gradients
from gradwatch.record.guard import ErrorGuard
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


class LossScaling:
    """The GradScaler of the loop, given or met on its way to the optimizer."""

    def __init__(self, scaler: Any = None) -> None:
        self._ref: Callable[[], Any] = weakref.ref(scaler) if scaler is not None else lambda: None

    @property
    def known(self) -> bool:
        """Whether there is a scaler, and it is still alive."""
        return self._ref() is not None

    def meet(self) -> bool:
        """Look for the scaler that is calling the optimizer's step at this moment."""
        for frame, _ in islice(walk_stack(sys._getframe()), 0 if self.known else 16):
            # Only a frame of the scaler's own is asked for what it holds, which is the scaler.
            if frame.f_code in _STEPPING and frame.f_locals["self"].is_enabled():
                self._ref = weakref.ref(frame.f_locals["self"])
        return self.known

    @property
    def tensor(self) -> Any:
        """The scale where it lives, which may be an accelerator; None without a scaler."""
        return getattr(self._ref(), "_scale", None)

    def scale(self) -> float:
        """The present scale; NaN where it is on an accelerator, 1 where there is no scaler."""
        # A scaler makes the tensor when it first scales a loss.
        scale = self.tensor
        return number(getattr(self._ref(), "_init_scale", 1.0) if scale is None else scale)

    def has_backed_off(self, since: float | None) -> bool:
        """Whether the scale was lowered since a backward that ran with this one."""
        return since is not None and self.known and not self.scale() >= since

    def clip_factor(self, factor: float, exact: bool, scale: float | None = None) -> float:
        """What gradients that were scaled were clipped by; NaN where the loss scale hides it."""
        suspicious = factor < SMALLEST_CLIP or (exact and factor < 1.0)
        if self.known or (suspicious and self.meet()):
            factor *= self.scale() if scale is None else scale
        elif exact and factor < SMALLEST_CLIP:
            return 1.0  # a scale of its own, already taken out
        return 1.0 if abs(factor - 1.0) < TOLERANCE else factor


_STEPPING = {GradScaler.step.__code__, GradScaler._maybe_opt_step.__code__}


@dataclass(slots=True)
class SampledParameter:
    """One parameter with hooks, and what was seen at it since the optimizer last stepped."""

    ref: Callable[[], Tensor | None]
    index: int
    backwards: int = 0
    discarded: int = 0
    """Gradients that were cleared before anybody used them."""
    version: int = -1
    scale: float | None = None
    """The loss scale of the last backward, where one is known."""
    sample: Tensor | None = None
    """On an accelerator; what is on the CPU the kernel keeps."""


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
        self._handles: list[Any] = []
        self._sampling = False
        self._hooked = True
        self.stale: bool | None = None
        """Whether gradients of earlier steps were left when the first backward began. None where
        they lie on an accelerator: only its own numbers would tell whether they are zero."""

    @property
    def passes(self) -> int:
        """Backward passes since the optimizer last stepped."""
        ends = self._sampled
        return max(ends[0].backwards, ends[-1].backwards) if ends else 0

    @property
    def discarded(self) -> int:
        """How many of them were cleared unused."""
        return max([sampled.discarded for sampled in self._sampled], default=0)

    @property
    def missed(self) -> bool:
        """Whether a sampled parameter got no gradient although another did."""
        return len({sampled.backwards > 0 for sampled in self._sampled}) > 1

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
        able = [(i, p) for i, p in enumerate(parameters) if p is not None and _can_be_sampled(p)]
        chosen = able[:1] + able[1:][-1:]
        if [(i, id(p)) for i, p in chosen] != [(s.index, id(s.ref())) for s in self._sampled]:
            self._sampled = [SampledParameter(weakref.ref(p), i) for i, p in chosen]
            self._mount()

    def prepare(self, *, sampling: bool, hooked: bool) -> None:
        """Before a step: whether to keep samples, and whether to have hooks at all."""
        self._sampling = sampling
        if hooked is not self._hooked:
            self._hooked = hooked
            self._mount()

    def remove(self) -> None:
        """Take every hook away, for good."""
        self._sampled = []
        self._mount()

    def _mount(self) -> None:
        """Put hooks on what is sampled now, where there are to be any, and nowhere else."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for sampled in self._sampled if self._hooked else ():
            parameter = sampled.ref()
            if parameter is None or not parameter.requires_grad:
                continue
            if sampled is self._sampled[-1]:  # a backward pass comes to it first
                before = partial(self._guard.run, self._before, sampled)
                # Parameters are pickled and copied without their hooks; torch warns unless told.
                before.__torch_unserializable__ = True  # type: ignore[attr-defined]
                self._handles.append(parameter.register_hook(before))
            after = partial(self._guard.run, self._after, sampled)
            self._handles.append(parameter.register_post_accumulate_grad_hook(after))

    def stepped(self) -> None:
        """The optimizer has stepped: what comes now belongs to the next step."""
        self.stale = None
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

    def _before(self, sampled: SampledParameter, _: Tensor) -> None:
        """A gradient is about to be added to this parameter."""
        parameter = sampled.ref()
        if parameter is None:
            return
        if sampled.backwards == 0:
            if self._sampling and self.stale is None and not on_accelerator(parameter.grad):
                self.stale = not _is_cleared(parameter.grad)
        # A second pass without a step in between: accumulation, unless the first was thrown away.
        # torch counts in `_version` how often a tensor was changed in place: by a step it was.
        elif parameter._version == sampled.version and _is_cleared(parameter.grad):
            sampled.discarded += 1
            # What was left is gone too, so nobody forgot it: a generator's loss leaves gradients in
            # the discriminator, which clears them before its own backward.
            if self._sampling:
                self.stale = False
            self._on_thrown_away(sampled.scale)

    def _after(self, sampled: SampledParameter, parameter: Tensor) -> None:
        """This parameter's gradient is complete, but for an average over ranks."""
        if parameter.grad is None:
            return  # none is left where the user steps inside backward
        sampled.backwards += 1
        sampled.version = parameter._version  # the next pass finds another if a step was made
        if self.scaling.known:
            sampled.scale = self.scaling.scale()
        self._on_backward()
        if not self._sampling:
            return
        if _DISTRIBUTED and torch.distributed.is_initialized():
            # DDP averages gradients in a callback that it queues when its last bucket is filled,
            # maybe after this: a callback that queues another runs behind all those.
            keep = partial(self._guard.run, self._keep, sampled)
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(keep))
        else:
            self._keep(sampled)

    def _keep(self, sampled: SampledParameter) -> None:
        if self._kernel is not None and self._kernel.sample(sampled.index):
            return
        gradient: Any = getattr(sampled.ref(), "grad", None)
        if on_accelerator(gradient) and gradient.layout is torch.strided:
            # A copy: the loop may change the gradient in place before it is compared.
            sampled.sample = spread(gradient, _ELEMENTS).clone()


def _can_be_sampled(parameter: Tensor) -> bool:
    measured = parameter.dtype in KERNEL_DTYPES and not parameter.is_meta and parameter.numel() > 0
    return measured and parameter.requires_grad and parameter.is_leaf


def _is_cleared(gradient: Tensor | None) -> bool:
    """No gradient, or zeros where we look; an accelerator only shows the former."""
    if gradient is None or (gradient.is_sparse and gradient._nnz() == 0):
        return True
    looked_at = gradient.is_cpu and gradient.layout is torch.strided
    values = readable_here(spread(gradient, _ELEMENTS)) if looked_at else None
    return values is not None and not as_array(values).any()
