"""Backward passes and losses that no optimizer step answers: what `no-optimizer-step` reads."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.checks.logged import HELD_OUT, is_loss, words
from gradwatch.record.clipping import Sample, are_equal, sample
from gradwatch.record.guard import log
from gradwatch.record.metadata import LoggedScalar
from gradwatch.record.parameters import TrackedOptimizer, TrackedParameters
from gradwatch.record.recorder import Recorder
from gradwatch.run import Event, EventKind

LEAST = 20
"""Backward passes or losses without a step before anything is noted."""


class UnansweredPasses:
    """Counts backward passes and logged losses from the start of a run until its first step.

    What it finds goes to `run.info["without_step"]`, each time the count has doubled and at the
    end; a step takes it back.
    """

    def __init__(
        self, recorder: Recorder, parameters: TrackedParameters, drain: Callable[[], None]
    ) -> None:
        self._recorder = recorder
        self._drain = drain
        """Brings what was logged and is still kept elsewhere."""
        self._parameters = parameters
        self._hooks = 0
        """Calls of the samplers' hooks: a few for each pass."""
        self._next = LEAST
        self._losses: dict[str, list[float]] = {}
        """By name: how many, the first and the last."""
        self._next_losses = LEAST
        self._weights: list[tuple[weakref.ref[Tensor], Sample]] = []
        """Some elements as they were at first: they move where somebody steps unseen."""
        self._noted = False

    def backward(self) -> None:
        """A sampled parameter has got its gradient."""
        self._hooks += 1
        if self._hooks == 1:
            self._keep_weights()
        if self._hooks >= self._next:
            enough = self._passes() >= LEAST
            self._next = 2 * self._hooks if enough else self._hooks + LEAST
            if enough:
                self.note()

    def logged(self, items: Iterable[LoggedScalar]) -> None:
        """The user has logged these."""
        for _, name, value in items:
            if is_loss(name) and not words(name) & HELD_OUT:
                seen = self._losses.setdefault(name, [0.0, value, value])
                seen[0] += 1
                seen[2] = value
        count = max((seen[0] for seen in self._losses.values()), default=0)
        if count >= self._next_losses:
            self._next_losses = 2 * int(count)
            self.note()

    def answered(self) -> None:
        """An optimizer steps, or the user says so: nothing was wrong."""
        if self._noted:
            self._recorder.note({"without_step": {}})

    def end(self, step: int, strangers: Iterable[Optimizer]) -> None:
        """The run is over, and no step was made: what there is belongs to the one that never came.

        `strangers` are optimizers that did step, but no parameter of the model.
        """
        if passes := self._passes():
            text = "backward ran, but no optimizer step was seen: call watcher.step() after each"
            self._recorder.sink.event(Event(step, EventKind.NOT_RECORDED, text))
            self._recorder.scalars(step, {"backwards": float(passes)})
        self.note(wait=True, strangers=strangers)

    def note(self, *, wait: bool = False, strangers: Iterable[Optimizer] = ()) -> None:
        """Keep what was counted, if it is worth it; `wait` for devices only at the end."""
        self._drain()
        name = max(self._losses, key=lambda name: self._losses[name][0], default="")
        count, first, last = self._losses.get(name, [0.0, 0.0, 0.0])
        if max(count, self._passes()) < LEAST:
            return
        samplers = [tracked.sampler for tracked in self._parameters.all]
        moved = self._have_moved(wait)
        if moved and not self._noted:
            log.warning(
                "gradwatch: the weights change, but no step was seen; call watcher.step() after "
                "each step of an optimizer that is not one of torch's"
            )
        self._noted = True
        found: dict[str, Any] = {
            "backwards": self._passes(),
            "discarded": max(sampler.discarded for sampler in samplers),
            "losses": int(count),
            "moved": moved,
            "optimizers": _kinds(tracked.optimizer for tracked in self._parameters.optimizers),
            "strangers": _kinds(strangers),
        }
        if isfinite(first) and isfinite(last) and count:
            found |= {"loss": name, "first_loss": first, "last_loss": last}
        self._recorder.note({"without_step": found})

    def _passes(self) -> int:
        return max(tracked.sampler.passes for tracked in self._parameters.all)

    def _keep_weights(self) -> None:
        for tracked in self._parameters.all:
            for parameter in tracked.sampler.parameters():
                if (bits := sample(parameter)) is not None:
                    self._weights.append((weakref.ref(parameter), bits))

    def _have_moved(self, wait: bool) -> bool:
        for ref, was in self._weights:
            if (parameter := ref()) is None or not (parameter.is_cpu or wait):
                continue
            now = sample(parameter)
            if now is not None and not are_equal(was, now):
                return True
        return False


def silent_optimizers(optimizers: Sequence[TrackedOptimizer]) -> list[dict[str, Any]]:
    """Those of several that have never stepped although their parameters get gradients."""
    return [
        {
            "optimizer": type(optimizer).__name__,
            "position": position,
            "of": len(optimizers),
            "backwards": tracked.sampler.passes,
            "parameters": [info.name for info in tracked.parameters],
        }
        for position, tracked in enumerate(optimizers, 1)
        if not tracked.has_stepped
        and (optimizer := tracked.optimizer) is not None
        and tracked.sampler.passes >= LEAST
    ]


def _kinds(optimizers: Iterable[Optimizer | None]) -> list[str]:
    return [type(optimizer).__name__ for optimizer in optimizers if optimizer is not None]
