"""Arrays handed in for every step, measured as the recorder measures a training.

The same calls of the kernel, the same rows: what a recording of these gradients and weights would
hold, a run made from them holds too.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import Batch, batch_of, hashes, measure, row_spread, step
from gradwatch.run.given import Listed, as_array, as_scalars, as_steps, by_name, each_step, refused
from gradwatch.run.source import MemorySource
from gradwatch.run.subject import Subject, with_known_shapes
from gradwatch.stats import Family, Kind, Stat, State
from gradwatch.stats import rows as row_maker

Arrays = list[NDArray[Any] | None]
"""What each parameter has on one step."""
States = NDArray[np.uint8]
Table = dict[str, Listed]
"""What was handed in: by name, one array or None for each step."""


def source_from_arrays(gradients: Any, weights: Any, steps: Any, scalars: Any) -> MemorySource:
    """Measure every array and lay the statistics out by step and parameter."""
    grads, values = _table(gradients), _table(weights)
    grid = as_steps(steps, _length([*grads.items(), *values.items()]), "the arrays")
    names = list(dict.fromkeys((*grads, *values)))
    subjects = with_known_shapes([_subject(name, (grads, values)) for name in names])
    recorder = _ArrayRecorder(grid, subjects)
    last: tuple[Arrays, Arrays] = [], []
    for row in range(len(grid)):
        # The arrays of one step are read together; of those that had to be copied (lists, integers,
        # 16-bit tensors), no more than two steps are in memory, and the direction of each gradient.
        now_grads, now_weights = _arrays(grads, names, row), _arrays(values, names, row)
        if grads:
            recorder.gradients(row, now_grads)
        if values:
            recorder.weights(row, now_weights)
        if grads and values and row and grid[row] == grid[row - 1] + 1:
            recorder.updates(row - 1, last[1], now_weights, last[0])
        last = now_grads, now_weights
    return recorder.source(as_scalars(scalars, len(grid)))


def _table(given: Any) -> Table:
    named = by_name({} if given is None else given, "arrays by name")
    return {name: each_step(item, name) for name, item in named.items()}


def _length(series: Sequence[tuple[str, Listed]]) -> int:
    """How many arrays every name has."""
    length = len(series[0][1]) if series else 0
    for name, items in series:
        if len(items) != length:
            wanted = f"{length} arrays in {name!r}, as many as in {series[0][0]!r}"
            raise refused(wanted, len(items), "Use None where a step has no gradient.")
    return length


def _subject(name: str, tables: Sequence[Table]) -> Subject:
    """The name is its own layer: nobody said which names belong together."""
    first = next((x for table in tables for x in table.get(name, ()) if x is not None), None)
    if first is None:
        return Subject(Kind.PARAMETER, name, name)
    array = as_array(first, name)
    dtype = str(getattr(first, "dtype", array.dtype)).removeprefix("torch.")
    return Subject(Kind.PARAMETER, name, name, array.shape, dtype, array.size)


def _arrays(table: Table, names: Sequence[str], row: int) -> Arrays:
    items = ((name, table[name][row] if name in table else None) for name in names)
    return [None if item is None else as_array(item, name) for name, item in items]


class _ArrayRecorder:
    """Measures the arrays of one step after another, as the recorder does those of a model.

    What `_batch` copied has to stay while the kernel reads it: `_owners` holds it until the end of
    each method.
    """

    def __init__(self, steps: NDArray[np.int64], subjects: Sequence[Subject]) -> None:
        self._steps, self._subjects = steps, subjects
        self._rows: dict[Family, NDArray[np.void]] = {}
        self._states: dict[Family, States] = {}
        shapes = (subject.shape if subject.count else () for subject in subjects)
        self._memory = row_maker.RowMemory([shape[0] if len(shape) > 1 else 0 for shape in shapes])
        self._last = [np.empty(0)] * len(subjects)

    def gradients(self, row: int, arrays: Arrays) -> None:
        batch, owners, states = _batch(arrays, State.NO_GRADIENT)
        records = measure(batch, touched=self._memory.fresh(batch.rows)).records
        rows = row_maker.moment_rows(Family.GRAD, records, states)
        rows["grad_dead_rows"], rows["grad_untouched_rows"] = self._memory.remember()
        with np.errstate(all="ignore"):
            for at in np.flatnonzero(states == State.MEASURED):
                flat = owners[at].reshape(-1)
                now = flat.astype(np.result_type(flat, np.float32)) / records["norm"][at]
                last, self._last[at] = self._last[at], now
                rows["grad_cosine"][at] = last @ now if last.shape == now.shape else np.nan
        self._put(Family.GRAD, row, row_maker.blank(Family.GRAD, rows, states), states)

    def weights(self, row: int, arrays: Arrays) -> None:
        batch, _owners, states = _batch(arrays, State.NOT_SAMPLED)
        rows = row_maker.moment_rows(Family.WEIGHT, measure(batch).records, states)
        rows["weight_row_spread"] = row_spread(batch)
        rows["weight_hash"] = hashes(batch, np.zeros(len(batch)))
        self._put(Family.WEIGHT, row, row_maker.blank(Family.WEIGHT, rows, states), states)

    def updates(self, row: int, before: Arrays, after: Arrays, gradients: Arrays) -> None:
        """What the step at this row changed: its weights against those of the step after."""
        olds, news, grads = list(before), list(after), list(gradients)
        for at, (old, new, grad) in enumerate(zip(before, after, gradients, strict=True)):
            if old is None or new is None or (old.shape, old.dtype) != (new.shape, new.dtype):
                olds[at] = news[at] = grads[at] = None  # cannot be compared element by element
            elif grad is not None and grad.shape != old.shape:
                grads[at] = None
        old_batch, _old_owners, states = _batch(olds, State.NOT_SAMPLED)
        new_batch, _new_owners, _ = _batch(news, State.NOT_SAMPLED)
        grad_batch, _grad_owners, _ = _batch(grads, State.NO_GRADIENT)
        records, _ = step(old_batch, new_batch, grad_batch)
        self._put(Family.UPDATE, row, row_maker.update_rows(records, states), states)

    def _put(self, family: Family, row: int, rows: NDArray[np.void], states: States) -> None:
        if family not in self._rows:
            shape = len(self._steps), len(self._subjects)
            self._rows[family] = row_maker.empty_rows(family, prod(shape)).reshape(shape)
            self._states[family] = np.full(shape, State.NOT_SAMPLED, np.uint8)
        self._rows[family][row], self._states[family][row] = rows, states

    def source(self, scalars: dict[str, NDArray[np.float64]]) -> MemorySource:
        """Everything that was measured."""
        stats = [stat for stat in Stat if stat.family in self._rows]
        values = {stat: self._rows[stat.family][stat] for stat in stats}
        states = {stat: self._states[stat.family] for stat in stats}
        return MemorySource(self._steps, self._subjects, values, states, scalars=scalars)


def _batch(arrays: Arrays, without: State) -> tuple[Batch, Any, States]:
    """For the kernel, the owners of its memory, and a state for each: `without` where none is."""
    batch, owners = batch_of([np.empty(0) if array is None else array for array in arrays])
    states = [without if array is None else State.MEASURED for array in arrays]
    return batch, owners, np.array(states, np.uint8)
