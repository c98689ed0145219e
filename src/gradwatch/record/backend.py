"""What measures parameters: one interface, implemented for the CPU and for accelerators."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.record.device.transfer import Transfer
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import Parts, PendingRows, ReadyRows
from gradwatch.stats import Family


class SentRows(NamedTuple):
    """`PendingRows` whose numbers were sent off, with the step and parameters they belong to."""

    step: int
    transfer: Transfer | None
    """None where there is nothing to wait for."""
    finish: Callable[[Parts], ReadyRows]
    tracked: TrackedOptimizer | None = None
    ids: NDArray[np.uint32] | None = None
    """Of the parameters as they were then; the optimizer may have got others since."""

    @property
    def arrived(self) -> bool:
        """Whether the numbers are on the host, so that reading them waits for nothing."""
        return self.transfer is None or self.transfer.arrived

    def result(self) -> ReadyRows:
        """The rows; waits for the device where they have not arrived."""
        if self.transfer is None:
            return self.finish([])
        self.transfer.wait()
        return self.finish(self.transfer.parts())


@dataclass
class OptimizerStep:
    """One call of an optimizer's `step`, from its first hook to its last."""

    tracked: TrackedOptimizer
    step: int
    due: frozenset[Family]
    histograms: bool
    closure: bool
    """The gradient is made inside the call: it can be read only afterwards."""
    unowned: TrackedOptimizer | None = None
    """The parameters of no optimizer, where they are measured with this call."""
    collects: bool = False
    """The signals are to be read with this call."""
    sketches: bool = True
    cosines: bool = True
    skipped: bool = False
    """It is known that the call will leave the weights alone."""
    superseded: bool = False
    """An optimizer inside this one steps the same parameters: that one counts."""
    pending: list[SentRows] = field(default_factory=list)
    """Measured before the update, handed on after it."""
    scalars: dict[str, float] = field(default_factory=dict)

    def supersede(self) -> None:
        """Record nothing of this call."""
        self.superseded = True
        self.pending.clear()
        self.tracked.backend.drop_snapshot()


class Backend(ABC):
    """Measures the parameters of one `TrackedOptimizer` where they lie.

    What it gives may still be under way from a device: nobody waits for it.
    """

    @abstractmethod
    def prepare(self, tracked: TrackedOptimizer) -> None:
        """The parameters to be measured are known; called once, before anything else."""

    @abstractmethod
    def weights(self, tracked: TrackedOptimizer, *, histograms: bool) -> PendingRows:
        """The weights as they are now."""

    @abstractmethod
    def gradients(self, tracked: TrackedOptimizer, call: OptimizerStep) -> PendingRows:
        """The gradients in the units backward made them in: loss scale and clipping undone.

        `tracked` is that of the call, or the parameters of no optimizer.
        """

    @abstractmethod
    def snapshot(self, tracked: TrackedOptimizer) -> None:
        """Keep the weights as they are now, for `updates`."""

    @abstractmethod
    def drop_snapshot(self) -> None:
        """The step it was taken for will not be compared."""

    @abstractmethod
    def updates(self, call: OptimizerStep) -> PendingRows:
        """What the step did to the weights since `snapshot`, and Adam's ratio, as far as due."""

    @abstractmethod
    def is_skipped(self, tracked: TrackedOptimizer) -> bool:
        """Whether the optimizer was told to leave the weights alone, as far as is known now."""
