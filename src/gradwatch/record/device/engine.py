"""What measures tensors on a device: one interface, two engines (Triton, and torch's operations).

An engine launches work and never waits: what it gives are small tensors to be copied to the host,
and a function that makes the kernel's records of them once they are there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import BinTable
from gradwatch.record.rows import Parts
from gradwatch.stats.rows import WINDOW

MOST_MEMORY = 120_000_000
"""Bytes that a step may take of the device's memory, over what was there before."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Sent(Generic[_Result]):
    """Small tensors on their way to the host, and what will be made of their numbers."""

    parts: Sequence[Tensor]
    finish: Callable[[Parts], _Result]


class DeviceMeasurement(NamedTuple):
    """Of every tensor of a batch what the CPU kernel would have given; empty ones for None."""

    records: NDArray[np.void]
    """MOMENTS; `zero_rows` filled in, infinities by sign."""
    bins: BinTable | None = None
    sketches: NDArray[np.float32] | None = None
    """NaN in the lines of tensors that are None."""
    dead_rows: NDArray[np.uint64] | None = None
    untouched_rows: NDArray[np.uint64] | None = None
    hashes: NDArray[np.uint64] | None = None
    spreads: NDArray[np.float32] | None = None


class DeviceSteps(NamedTuple):
    """What a step did to every tensor of a batch."""

    updates: NDArray[np.void] | None
    """UPDATE, of the coordinates that were compared."""
    compared: NDArray[np.int64]
    """How many coordinates of each tensor were; 0 where a snapshot did not fit what came after."""
    ratios: NDArray[np.void] | None
    """ADAM; NaN where there was no second moment."""


class RowTimes:
    """When each row of the tensors last had a gradient other than zero; lives on the device.

    The rows of all tensors lie one after another, four bytes each. Shared by the engines, so that
    nothing is forgotten when one takes over from the other.
    """

    def __init__(self, rows: Sequence[int], device: torch.device) -> None:
        self.rows = np.array(rows, np.int64)
        """Of each tensor; 0 where it is no matrix or not there."""
        self.starts = np.concatenate([[0], np.cumsum(self.rows)])
        self.last = torch.full(
            (max(int(self.starts[-1]), 1),), -WINDOW, dtype=torch.int32, device=device
        )
        self.now = 0
        """The number of the recorded gradient that is measured next; engines count it up."""


@dataclass(frozen=True)
class Places:
    """Where tensors lie in the wholes they may be shards of, and what scrambles their sketches."""

    seeds: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    wholes: NDArray[np.int64]


@dataclass(frozen=True)
class Wanted:
    """What is to be found out beside the moments."""

    histograms: bool = False
    sketches: bool = False
    hashes: bool = False
    """And the spreads of rows: of weights."""
    rows: RowTimes | None = None
    """Given for gradients: rows are remembered. Zero rows are counted either way."""
    factor: Tensor | None = None
    """One number on the device that elements are multiplied by before they are put into bins."""
    void: Tensor | None = None
    """One number on the device: where it is not 0 the rows of this step are not remembered."""


@dataclass(frozen=True)
class DeviceDivisors:
    """Adam's second moments of a batch; None where a tensor has none."""

    seconds: Sequence[Tensor | None]
    steps: Sequence[float | Tensor]
    """How often each was updated: a number, or a tensor on the device (capturable)."""
    betas: NDArray[np.float64]
    epsilons: NDArray[np.float64]


@dataclass(frozen=True)
class Snapshot:
    """Weights before a step, flat: whole tensors, or what lies at their fixed coordinates."""

    copies: Sequence[Tensor | None]
    whole: bool


class Engine(ABC):
    """Measures dense tensors that lie on one device. One per set of tracked parameters.

    Tensors are given as `torch_engine.readable` leaves them: local pieces, detached, strided, of a
    type the kernel reads, with at least one element; None where there is nothing to be measured.
    """

    name: ClassVar[str]

    @abstractmethod
    def measure(
        self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        """Moments of the tensors and what else is wanted, in one pass."""

    @abstractmethod
    def snapshot(self, tensors: Sequence[Tensor | None]) -> Snapshot:
        """Copy the weights: whole where all of them fit into MOST_MEMORY, else at 4,096 places."""

    @abstractmethod
    def step(
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> Sent[DeviceSteps]:
        """What a step changed since `before`, and Adam's ratio; either may be missing."""

    @abstractmethod
    def output(self, tensor: Tensor) -> Tensor:
        """Of a layer's output, on the device: zeros, non-finite elements, and of the others the
        largest magnitude, the sum and the sum of squares; five numbers of the `wide` type, or as
        many lines of five as the engine made parts of it (`joined_output`)."""


def joined_output(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The five numbers of an output, from those of its parts as they have come over."""
    lines = numbers.reshape(-1, 5)
    joined: NDArray[np.float64] = lines.sum(axis=0)
    joined[2] = lines[:, 2].max()
    return joined
