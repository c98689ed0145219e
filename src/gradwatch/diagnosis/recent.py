"""The recent past of a training in memory: the first steps and the last ones, as a `Run`."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.run import MemorySource, Run, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State, entry, row_dtype

FIRST, LAST = 16, 496
KEPT: tuple[Stat, ...] = (
    Stat.GRAD_NORM,
    Stat.GRAD_NAN,
    Stat.GRAD_INF,
    Stat.GRAD_ZERO_ROWS,
    Stat.GRAD_DEAD_ROWS,
    Stat.WEIGHT_NORM,
    Stat.WEIGHT_STD,
    Stat.WEIGHT_NAN,
    Stat.WEIGHT_INF,
    Stat.WEIGHT_ROW_SPREAD,
    Stat.UPDATE_NORM,
    Stat.UPDATE_RATIO,
    Stat.OPTIM_RATIO_RMS,
    Stat.ACT_STD,
    Stat.ACT_MEAN,
    Stat.ACT_GATE_ZERO_FRACTION,
    Stat.ACT_FLAT_FRACTION,
    Stat.ACT_ENTROPY,
    Stat.PROBE_NONFINITE,
    Stat.PROBE_INPUT_NONFINITE,
    Stat.PROBE_TRAINING,
    Stat.LR,
)
_FIELDS = {
    family: [str(stat) for stat in KEPT if entry(stat).family is family] for family in Family
}


class FamilyRows(Protocol):
    """The rows of one family on one step, as the recorder hands them over."""

    @property
    def family(self) -> Family: ...
    @property
    def ids(self) -> NDArray[np.uint32]: ...
    @property
    def rows(self) -> NDArray[np.void]: ...
    @property
    def states(self) -> NDArray[np.uint8]: ...


class RecentPast:
    """A ring of `LAST` steps behind the first `FIRST`; grows only in the number of subjects."""

    def __init__(self) -> None:
        self._subjects: dict[int, Subject] = {}
        self._place: NDArray[np.int64] = np.zeros(0, np.int64)
        """Column of each id within the series of its kind."""
        self._widths = dict.fromkeys(Kind, 0)
        self._rows: dict[Family, NDArray[np.void]] = {}
        """By family [slot, column], only the fields that are kept."""
        self._states: dict[Family, NDArray[np.uint8]] = {}
        self._scalars: dict[str, NDArray[np.float64]] = {}
        self._steps = np.zeros(FIRST + LAST, np.int64)
        self._seen = 0
        self.info: dict[str, Any] = {}
        """What is known of the whole run."""

    def __len__(self) -> int:
        return min(self._seen, FIRST + LAST)

    @property
    def last_step(self) -> int:
        """Number of the newest step; −1 before the first."""
        return int(self._steps[: len(self)].max()) if self._seen else -1

    def declare(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """Learn which subjects the ids stand for."""
        for number, subject in zip(ids.tolist(), subjects, strict=True):
            if number not in self._subjects:
                if number >= len(self._place):
                    grown = np.zeros(max(64, 2 * number + 1), np.int64)
                    grown[: len(self._place)] = self._place
                    self._place = grown
                self._place[number] = self._widths[subject.kind]
                self._widths[subject.kind] += 1
            self._subjects[number] = subject

    def add(self, step: int, batches: Sequence[FamilyRows], scalars: Mapping[str, float]) -> None:
        """Take one step in; the oldest but the first ones goes."""
        at = self._seen if self._seen < FIRST else FIRST + (self._seen - FIRST) % LAST
        self._seen += 1
        self._steps[at] = step
        for states in self._states.values():
            states[at] = State.NOT_SAMPLED
        for values in self._scalars.values():
            values[at] = np.nan
        for batch in batches:
            fields = _FIELDS[batch.family]
            if not fields:
                continue
            columns = self._place[batch.ids]
            self._table(batch.family)[at, columns] = batch.rows[fields]
            self._states[batch.family][at, columns] = batch.states
        for name, value in scalars.items():
            if name not in self._scalars:
                self._scalars[name] = np.full(FIRST + LAST, np.nan)
            self._scalars[name][at] = value

    def _table(self, family: Family) -> NDArray[np.void]:
        """The rows of one family, wide enough for every subject declared so far."""
        width = self._widths[family.kind]
        before = self._rows.get(family)
        if before is None or before.shape[1] < width:
            dtype = row_dtype(family)
            kept = np.dtype([(name, dtype[name].str) for name in _FIELDS[family]])
            rows = np.zeros((FIRST + LAST, width), kept)
            states = np.full((FIRST + LAST, width), State.NOT_SAMPLED, np.uint8)
            if before is not None:
                rows[:, : before.shape[1]] = before
                states[:, : before.shape[1]] = self._states[family]
            self._rows[family], self._states[family] = rows, states
        return self._rows[family]

    def run(self) -> Run:
        """The steps that are kept, in the order of time; NaN where nothing was measured."""
        order = np.argsort(self._steps[: len(self)], kind="stable")
        values: dict[Stat, NDArray[np.float64]] = {}
        states: dict[Stat, NDArray[np.uint8]] = {}
        for family in self._rows:
            rows = self._table(family)[order]
            taken = self._states[family][order]
            for name in _FIELDS[family]:
                values[Stat(name)] = np.where(
                    HAS_VALUE[taken], rows[name].astype(np.float64), np.nan
                )
                states[Stat(name)] = taken
        return Run(
            MemorySource(
                self._steps[order],
                tuple(
                    self._subjects[n] for n in sorted(self._subjects, key=self._place.__getitem__)
                ),
                values,
                states,
                scalars={name: table[order] for name, table in self._scalars.items()},
                info=dict(self.info),
            )
        )
