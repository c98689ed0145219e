"""Arrays handed in for every step, measured as the recorder measures a training.

The same calls of the kernel, the same rows: what a recording of these gradients and weights would
hold, a run made from them holds too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.kernel import Batch, batch_of, hashes, measure, row_spread, step
from gradwatch.run.given import Listed, as_array, as_scalars, as_steps, by_name, each_step
from gradwatch.run.source import MemorySource
from gradwatch.run.subject import Subject, with_known_shapes
from gradwatch.stats import HAS_VALUE, SKETCH_WIDTH, Family, Kind, Stat, State, family_stats
from gradwatch.stats.rows import (
    RowMemory,
    SketchMemory,
    blank,
    gradient_rows,
    moment_rows,
    name_seed,
    update_rows,
)

Arrays = list[NDArray[Any] | None]
"""What each parameter has on one step."""
Tables = Mapping[Family, Mapping[str, Listed]]
_NONE = np.empty(0)


def source_from_arrays(gradients: Any, weights: Any, steps: Any, scalars: Any) -> MemorySource:
    """Measure every array and lay the statistics out by step and parameter."""
    tables = {
        family: {
            name: each_step(item, name)
            for name, item in by_name({} if given is None else given, "arrays by name").items()
        }
        for family, given in ((Family.GRAD, gradients), (Family.WEIGHT, weights))
    }
    grid = as_steps(steps, _length(tables), "the arrays")
    names = dict.fromkeys((*tables[Family.GRAD], *tables[Family.WEIGHT]))
    subjects = with_known_shapes([_subject(name, tables) for name in names])
    recorder = _ArrayRecorder(len(grid), subjects)
    before: list[Arrays] | None = None
    for row in range(len(grid)):
        # The arrays of one step are read together; of those that had to be copied (lists, integers,
        # 16-bit tensors), no more than two steps are in memory.
        now = [_arrays(tables[family], names, row) for family in (Family.GRAD, Family.WEIGHT)]
        if tables[Family.GRAD]:
            recorder.gradients(row, now[0])
        if tables[Family.WEIGHT]:
            recorder.weights(row, now[1])
        if before and all(tables.values()) and grid[row] == grid[row - 1] + 1:
            recorder.updates(row - 1, before[1], now[1], before[0])
        before = now
    return recorder.source(grid, as_scalars(scalars, len(grid)))


def _length(tables: Tables) -> int:
    lengths = [(name, len(items)) for table in tables.values() for name, items in table.items()]
    for name, length in lengths:
        if length != lengths[0][1]:
            raise GradwatchError(
                f"Expected as many arrays for every name, got {lengths[0][1]} in {lengths[0][0]!r} "
                f"and {length} in {name!r}. Use None where a step has no gradient.",
                Exit.USAGE,
            )
    return lengths[0][1] if lengths else 0


def _subject(name: str, tables: Tables) -> Subject:
    """The name is its own layer: nobody said which names belong together."""
    for table in tables.values():
        for item in table.get(name, ()):
            if item is not None:
                array = as_array(item, name)
                dtype = str(getattr(item, "dtype", array.dtype)).removeprefix("torch.")
                return Subject(Kind.PARAMETER, name, name, array.shape, dtype, array.size)
    return Subject(Kind.PARAMETER, name, name)


def _arrays(table: Mapping[str, Listed], names: Mapping[str, None], row: int) -> Arrays:
    return [
        None if name not in table or table[name][row] is None else as_array(table[name][row], name)
        for name in names
    ]


class _ArrayRecorder:
    """Measures the arrays of one step after another, as the recorder does those of a model.

    Values and states by step and parameter are filled row by row. What `_batch` copied has to stay
    while the kernel reads it: `_owners` holds it until the end of each method.
    """

    def __init__(self, steps: int, subjects: Sequence[Subject]) -> None:
        self._shape, self._subjects = (steps, len(subjects)), subjects
        self._values: dict[Stat, NDArray[Any]] = {}
        self._states: dict[Family, NDArray[np.uint8]] = {}
        self._hashes = np.zeros(self._shape, np.uint64)
        self._seeds = np.array([name_seed(subject.name) for subject in subjects], np.uint64)
        shapes = (subject.shape if subject.count else () for subject in subjects)
        self._memory = RowMemory([shape[0] if len(shape) > 1 else 0 for shape in shapes])
        self._last_sketch = np.full((len(subjects), SKETCH_WIDTH), np.nan, np.float32)

    def gradients(self, row: int, arrays: Arrays) -> None:
        batch, _owners, states = _batch(arrays, State.NO_GRADIENT)
        touched = self._memory.fresh(batch.rows)
        records, _, sketches = measure(batch, seeds=self._seeds, touched=touched)
        assert sketches is not None
        seen = SketchMemory(sketches, self._last_sketch, batch.counts, cosines=True)
        rows, _ = gradient_rows(records, states, 1.0, self._memory, seen)
        self._put(Family.GRAD, row, rows, states)

    def weights(self, row: int, arrays: Arrays) -> None:
        batch, _owners, states = _batch(arrays, State.NOT_SAMPLED)
        rows = moment_rows(Family.WEIGHT, measure(batch).records, states)
        rows["weight_row_spread"] = row_spread(batch)
        rows["weight_hash"] = hashes(batch, np.zeros(len(batch)))
        self._put(Family.WEIGHT, row, blank(Family.WEIGHT, rows, states), states)
        self._hashes[row] = rows[Stat.WEIGHT_HASH]

    def updates(self, row: int, before: Arrays, after: Arrays, gradients: Arrays) -> None:
        """What the step at this row changed: its weights against those of the step after."""
        fits = [_alike(a, b) for a, b in zip(before, after, strict=True)]
        held = [
            fit and grad is not None and array is not None and grad.shape == array.shape
            for fit, array, grad in zip(fits, before, gradients, strict=True)
        ]
        old, _old_owners, states = _batch(_only(before, fits), State.NOT_SAMPLED)
        new, _new_owners, _ = _batch(_only(after, fits), State.NOT_SAMPLED)
        grads, _grad_owners, _ = _batch(_only(gradients, held), State.NO_GRADIENT)
        records, _ = step(old, new, grads)
        self._put(Family.UPDATE, row, update_rows(records, states), states)

    def _put(
        self, family: Family, row: int, rows: NDArray[np.void], states: NDArray[np.uint8]
    ) -> None:
        if family not in self._states:
            self._states[family] = np.full(self._shape, State.NOT_SAMPLED, np.uint8)
            for stat in family_stats(family):
                # Sketches are many numbers: they stay in the 32 bits they were measured in.
                wide = stat.width > 1
                shape = (*self._shape, stat.width) if wide else self._shape
                self._values[stat] = np.full(shape, np.nan, "f4" if wide else "f8")
        self._states[family][row] = states
        has = HAS_VALUE[states]
        for stat in family_stats(family):
            self._values[stat][row, has] = rows[stat][has]

    def source(
        self, grid: NDArray[np.int64], scalars: Mapping[str, NDArray[np.float64]]
    ) -> MemorySource:
        """Everything that was measured."""
        states = {stat: self._states[stat.family] for stat in self._values}
        exact = {Stat.WEIGHT_HASH: self._hashes} if Stat.WEIGHT_HASH in self._values else {}
        return MemorySource(grid, self._subjects, self._values, states, exact, scalars)


def _alike(first: NDArray[Any] | None, second: NDArray[Any] | None) -> bool:
    """Whether both are there and can be compared element by element."""
    return (
        first is not None
        and second is not None
        and (first.shape, first.dtype) == (second.shape, second.dtype)
    )


def _only(arrays: Arrays, keep: Sequence[bool]) -> Arrays:
    return [array if kept else None for array, kept in zip(arrays, keep, strict=True)]


def _batch(arrays: Arrays, without: State) -> tuple[Batch, Any, NDArray[np.uint8]]:
    """For the kernel, the owners of its memory, and a state for each: `without` where none is."""
    batch, owners = batch_of([_NONE if array is None else array for array in arrays])
    states = [without if array is None else State.MEASURED for array in arrays]
    return batch, owners, np.array(states, np.uint8)
