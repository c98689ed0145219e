"""Runs made from arrays and norms that somebody hands in."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.kernel import measure_arrays
from gradwatch.run.source import MemorySource
from gradwatch.run.subject import Subject, layer_of
from gradwatch.stats import Family, Kind, Stat, State, family_stats

MEASURED = frozenset(
    {"count", "norm", "mean", "std", "skewness", "kurtosis", "abs_mean", "abs_max", "min", "max"}
    | {"zero_fraction", "nan", "inf", "zero_rows"}
)


def from_arrays(
    gradients: Mapping[str, Sequence[ArrayLike | None]],
    weights: Mapping[str, Sequence[ArrayLike | None]],
    steps: Sequence[int] | None,
    scalars: Mapping[str, Sequence[float]],
) -> MemorySource:
    """Measure every array and lay the statistics out by step and parameter."""
    names = tuple(dict.fromkeys((*gradients, *weights)))
    lengths = {len(listed) for table in (gradients, weights) for listed in table.values()}
    if len(lengths) > 1:
        raise GradwatchError(
            f"Expected as many arrays for every name, got lists of {sorted(lengths)}. "
            "Use None where a step has no gradient.",
            Exit.USAGE,
        )
    grid = _steps(steps, lengths.pop() if lengths else 0)
    values: dict[Stat, NDArray[np.float64]] = {}
    states: dict[Stat, NDArray[np.uint8]] = {}
    for family, table in ((Family.GRAD, gradients), (Family.WEIGHT, weights)):
        if table:
            _measure(family, table, names, len(grid), values, states)
    subjects = tuple(
        _subject(name, gradients.get(name) or weights.get(name) or ()) for name in names
    )
    return MemorySource(grid, subjects, values, states, scalars=_scalars(scalars, len(grid)))


def from_norms(
    norms: Mapping[str, Sequence[float]],
    steps: Sequence[int] | Mapping[str, Sequence[int]] | None,
    scalars: Mapping[str, Sequence[float]],
) -> MemorySource:
    """Lay gradient norms out on the union of all steps, with a state for every cell."""
    per_layer = steps if isinstance(steps, Mapping) else dict.fromkeys(norms, steps)
    layer_steps = {name: _steps(per_layer.get(name), len(listed)) for name, listed in norms.items()}
    grid = np.unique(np.concatenate([*layer_steps.values(), np.empty(0, np.int64)]))
    shape = (len(grid), len(norms))
    norm, bad = np.full(shape, np.nan), np.zeros(shape)
    states = np.full(shape, State.NOT_SAMPLED, np.uint8)
    for column, (name, listed) in enumerate(norms.items()):
        rows = np.searchsorted(grid, layer_steps[name])
        given = np.asarray(listed, np.float64)
        norm[rows, column] = np.where(np.isfinite(given), given, np.nan)
        # A NaN or infinite norm is a measurement (the gradient was not finite), not a gap.
        bad[rows, column] = ~np.isfinite(given)
        states[rows, column] = State.MEASURED
    bad[states == State.NOT_SAMPLED] = np.nan
    return MemorySource(
        grid,
        tuple(_subject(name, ()) for name in norms),
        {Stat.GRAD_NORM: norm, Stat.GRAD_NAN: bad},
        {Stat.GRAD_NORM: states, Stat.GRAD_NAN: states},
        scalars=_scalars(scalars, len(grid)),
    )


def _measure(
    family: Family,
    table: Mapping[str, Sequence[ArrayLike | None]],
    names: Sequence[str],
    length: int,
    values: dict[Stat, NDArray[np.float64]],
    states: dict[Stat, NDArray[np.uint8]],
) -> None:
    shape = (length, len(names))
    state = np.full(shape, State.NOT_SAMPLED, np.uint8)
    stats = [
        (item.stat, field)
        for item in family_stats(family)
        if (field := item.stat.removeprefix(f"{family}_")) in MEASURED
    ]
    for stat, _ in stats:
        values[stat], states[stat] = np.full(shape, np.nan), state
    for column, name in enumerate(names):
        for row, array in enumerate(table.get(name, ())):
            if array is None:
                state[row, column] = State.NO_GRADIENT
                continue
            # One by one: of arrays that the kernel cannot read in place, only one copy is alive.
            (moments,) = measure_arrays([np.asarray(array)])
            state[row, column] = State.MEASURED
            for stat, field in stats:
                values[stat][row, column] = _value(moments, field)


def _value(moments: np.void, field: str) -> float:
    """One statistic of a measured tensor, by its name without the family."""
    if field == "inf":
        return float(moments["pos_inf"]) + float(moments["neg_inf"])
    if field == "zero_fraction":
        return float(moments["zeros"]) / float(moments["count"]) if moments["count"] else np.nan
    return float(moments[field])


def _subject(name: str, listed: Sequence[ArrayLike | None]) -> Subject:
    first = next((np.asarray(array) for array in listed if array is not None), None)
    layer = layer_of(name)
    if first is None:
        return Subject(Kind.PARAMETER, name, layer)
    return Subject(
        Kind.PARAMETER, name, layer, shape=first.shape, dtype=str(first.dtype), count=first.size
    )


def _steps(steps: Sequence[int] | None, length: int) -> NDArray[np.int64]:
    grid = np.arange(length) if steps is None else np.asarray(steps, np.int64)
    if len(grid) != length or (np.diff(grid) <= 0).any():
        raise GradwatchError(
            f"Expected {length} increasing step numbers, got {grid.tolist()[:8]}.", Exit.USAGE
        )
    return grid.astype(np.int64)


def _scalars(scalars: Mapping[str, Sequence[float]], length: int) -> dict[str, NDArray[np.float64]]:
    table = {name: np.asarray(listed, np.float64) for name, listed in scalars.items()}
    for name, listed in table.items():
        if len(listed) != length:
            raise GradwatchError(
                f"Expected {length} values of {name!r}, one per step, got {len(listed)}.",
                Exit.USAGE,
            )
    return table
