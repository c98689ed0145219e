"""What a signal is: something measured beside the parameters, such as the outputs of the layers."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gradwatch.graph import Graph
from gradwatch.record.device.launches import LaunchTimes
from gradwatch.record.rows import PendingRows, Reading
from gradwatch.run import Event
from gradwatch.stats import Family


class Signal:
    """Called by the watcher only, whose error guard and overhead timer are then in force.

    A signal overrides what it needs. The order within a step: `arm`, then the user's forward and
    backward passes, then either `collect`, `scalars`, `events`, `pending` or, where a gradient
    scaler left the step out, `skipped` and `pending`.
    """

    graph: Graph | None = None
    """The layer graph, from the signal that finds it."""
    loss_guess: Mapping[str, Any] = MappingProxyType({})
    """The kind of the loss, from the signal that finds it."""

    info: Mapping[str, Any] = MappingProxyType({})
    """What is true of the whole run, for `run.info`; whoever notes it empties it."""

    launch_times = LaunchTimes()
    """Where a signal notes what it launches on devices; each recorder has its own."""

    def attach(self) -> None:
        """The recording starts."""

    def detach(self) -> None:
        """The recording ends: take every hook away."""

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """The previous step has ended: what the coming one is to record."""

    def backward(self) -> None:
        """A backward pass has run."""

    def alarm(self) -> None:
        """The loss or a gradient on a device was not finite: look closely for a while."""

    def collect(self, step: int) -> Iterable[Reading]:
        """What was seen of this step; asked before the optimizer changes the weights."""
        return ()

    def skipped(self, step: int) -> Iterable[Reading]:
        """What is known of a step that the gradient scaler left out."""
        return ()

    def scalars(self, step: int) -> Mapping[str, float]:
        """Numbers of the step that belong to no layer; most signals have none."""
        return {}

    def events(self) -> Sequence[Event]:
        """What has happened since this was last asked."""
        return ()

    def pending(self, step: int) -> Sequence[PendingRows]:
        """What `collect` or `skipped` left to be read from an accelerator, which nobody awaits."""
        return ()

    def take_spent(self) -> float:
        """Seconds spent in the signal's own hooks since this was last asked."""
        return 0.0
