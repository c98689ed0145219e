"""The common columns of all maps and how the thinned series of a run are laid onto them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradwatch.run import Downsampled, Run
from gradwatch.stats import Kind, Stat, State
from gradwatch.views.model.titles import GRAD_RMS, Pick, Shown

STATES_UP_TO = 5_000_000
"""Beyond so many values the state bytes are not loaded: gaps are then only empty."""


@dataclass(frozen=True)
class Columns:
    """Buckets of recorded steps: first and last step of each (both included)."""

    run: Run
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    _thinned: dict[Stat, Downsampled] = field(default_factory=dict, compare=False)
    """Each statistic is thinned once, however many parts of the model show it."""

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, run: Run, first: int | None, last: int | None, points: int) -> "Columns":
        """At most `points` buckets of equally many recorded steps."""
        steps = run.steps
        if first is not None:
            steps = steps[np.searchsorted(steps, first) :]
        if last is not None:
            steps = steps[: np.searchsorted(steps, last, side="right")]
        if not len(steps):
            return cls(run, np.empty(0, np.int64), np.empty(0, np.int64))
        size = max(1, -(-len(steps) // max(points, 1)))
        starts = np.arange(0, len(steps), size)
        ends = np.minimum(starts + size, len(steps)) - 1
        return cls(run, steps[starts], steps[ends])

    def bands(self, stat: Stat) -> Downsampled:
        if stat not in self._thinned:
            window = self.run.window(int(self.first[0]), int(self.last[-1]), points=len(self))
            self._thinned[stat] = window.stat(stat)
        return self._thinned[stat]

    def laid(
        self, bands: Downsampled, values: NDArray[np.float64], pick: Pick
    ) -> NDArray[np.float64]:
        """One array of a run's bands as [column, subject]; stored levels may be cut otherwise."""
        if len(bands.first_steps) == len(self) and (bands.first_steps == self.first).all():
            return values
        out = np.full((len(self), values.shape[1]), np.nan)
        begins = np.searchsorted(self.last, bands.first_steps)
        ends = np.searchsorted(self.first, bands.last_steps, side="right")
        for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            part = out[begin:end]
            if pick is Pick.HIGH:
                np.fmax(part, values[row], out=part)
            else:
                part[:] = np.where(np.isnan(values[row]), part, values[row])
        return out

    def values(self, what: Shown) -> NDArray[np.float64]:
        """[column, subject of its kind] of one shown statistic."""
        bands = self.bands(what.stat)
        found = self.laid(bands, bands.high if what.pick is Pick.HIGH else bands.last, what.pick)
        return found / sizes(self.run) if what.name == GRAD_RMS else found

    def nonfinite(self, kind: Kind, stat: Stat) -> NDArray[np.bool_]:
        """Where any element was NaN or Inf."""
        counters = {
            "grad": (Stat.GRAD_NAN, Stat.GRAD_INF),
            "weight": (Stat.WEIGHT_NAN, Stat.WEIGHT_INF),
            "act": (Stat.ACT_NONFINITE, Stat.PROBE_NONFINITE),
        }.get(stat.partition("_")[0], ())
        hit = np.zeros((len(self), len(self.run.by_kind[kind])), bool)
        for counter in counters:
            if counter in self.run.recorded and not self._never(counter):
                bands = self.bands(counter)
                hit |= self.laid(bands, bands.high, Pick.HIGH) > 0
        return hit

    def _never(self, counter: Stat) -> bool:
        """Whether the run's source knows already that nothing was ever counted."""
        never: Callable[[Stat], bool] | None = getattr(self.run.source, "never", None)
        return never is not None and never(counter)

    def without_gradient(self, what: Shown, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Where a bucket has no value because there was no gradient."""
        gaps = np.isnan(values)
        large = len(self.run.steps) * values.shape[1] > STATES_UP_TO
        if what.kind is not Kind.PARAMETER or large or not gaps.any():
            return np.zeros(values.shape, bool)
        begin = int(np.searchsorted(self.run.steps, self.first[0]))
        end = int(np.searchsorted(self.run.steps, self.last[-1], side="right"))
        starts = np.searchsorted(self.run.steps, self.first) - begin
        states = self.run.state(what.stat)[begin:end]
        absent = np.logical_or.reduceat(states == State.NO_GRADIENT, starts, axis=0)
        return gaps & absent


def sizes(run: Run) -> NDArray[np.float64]:
    """√count of every parameter; 1 where the count is unknown (a run made from norms)."""
    counts = np.array([subject.count or 1 for subject in run.parameters], float)
    found: NDArray[np.float64] = np.sqrt(counts)
    return found


def sizes_known(run: Run) -> bool:
    return any(subject.count for subject in run.parameters)
