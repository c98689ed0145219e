"""The limits against a second implementation: one parameter at a time, in plain Python."""

from statistics import median

import numpy as np
import pytest
from tests.checks.shapes import make_run, weight

from gradwatch.checks import limits
from gradwatch.checks.context import context
from gradwatch.run import Run
from gradwatch.stats import State

SEEDS = 120
Samples = list[tuple[int, float]]
"""Row and norm, None as 0."""


def made(seed: int) -> Run:
    """Columns with gaps, zeros, None, jumps and trends, and now and then a skipped step."""
    random = np.random.default_rng(seed)
    steps, width = int(random.integers(4, 90)), 5
    rows, tail = np.arange(steps), int(random.integers(1, 30))
    norms = random.lognormal(0, 0.5, (steps, width)) * 10.0 ** random.choice([-24, -12, -3, 0, 0])
    if seed % 5 == 1:  # all fade, or grow, together
        norms *= np.geomspace(1, 10.0 ** random.integers(-14, 9), steps)[:, None]
    for column in range(width):
        match random.integers(0, 9):
            case 0:
                norms[-tail:, column] = 0.0
            case 1:
                norms[-tail % 6 - 1 :, column] *= 10.0 ** random.integers(2, 7)
            case 2:
                norms[:, column] *= np.geomspace(1, 10.0 ** random.integers(-13, 9), steps)
            case 3:
                norms[(random.random(steps) < 0.5) | (rows >= steps - tail), column] = 0.0
            case 4:
                norms[(rows % 60 >= 48) | (rows >= steps - tail), column] = 0.0
            case 5:
                norms[rows >= steps - tail, column] *= 10.0 ** random.integers(-14, 7)
    states = np.where(random.random(norms.shape) < 0.1, State.NOT_SAMPLED, State.MEASURED)
    if seed % 4 == 0:
        states[int(random.integers(0, steps)) :, 0] = State.NO_GRADIENT
    norms[states != State.MEASURED] = np.nan
    skipped = (random.random(steps) < 0.1 * (seed % 2)).astype(float)
    return make_run(
        {"grad_norm": norms},
        subjects=[weight(f"l{i}") for i in range(width)],
        states={"grad_norm": states},
        scalars={"skipped": skipped},
    )


def samples(run: Run, column: int) -> Samples:
    """What was measured of one parameter, skipped steps left out."""
    norms, skipped = run.series["grad_norm"][:, column], run.scalars["skipped"]  # type: ignore[index]
    return [
        (row, float(value))
        for row, value in enumerate(norms)
        if np.isfinite(value) and not skipped[row]
    ]


def counted(run: Run) -> list[int]:
    """Rows in which any parameter was measured, skipped steps left out."""
    return sorted({row for column in range(5) for row, _ in samples(run, column)})


def within(column: Samples, rows: list[int]) -> list[float]:
    chosen = set(rows)
    return [value for row, value in column if row in chosen]


def past(run: Run, column: Samples) -> float | None:
    rows = counted(run)
    half = [v for v in within(column, rows[: max(5, len(rows) // 2)][: len(rows) - 1]) if v > 0]
    return median(half) if len(half) >= 5 else None


def explodes(run: Run, column: Samples, strongest: float) -> bool:
    values, rows = [value for _, value in column], counted(run)
    if sum(value > 1e3 for value in values) >= 3 or max(values, default=0.0) > 1e6:
        return True
    fifth = max(5, len(rows) // 5)
    early, late = within(column, rows[:fifth]), within(column, rows[-fifth:])
    before = median(early) if early else 0.0
    if len(rows) >= 20 and before > 0 and late:  # grown
        limit = max(10.0, 1e3 * max(before, 1e-12))
        if median(late) > limit:
            return True
    usual = past(run, column)
    over = [value > 1e3 * usual for value in values] if usual else []
    if not any(over) or not all(over[over.index(True) :]):
        return False
    highest = max((v for v, beyond in zip(values, over, strict=True) if not beyond), default=0.0)
    at_once = values[over.index(True)] > 100 * highest
    near = rows.index(column[over.index(True)][0]) >= len(rows) - 3
    if at_once and near and values[-1] > 1e-2 * strongest:
        return True
    return (values[-1] > 10) + (values[-1] > strongest) + at_once >= 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_exploding_column_by_column(seed: int) -> None:
    run = made(seed)
    columns = [samples(run, column) for column in range(5)]
    strongest = max((usual for item in columns if (usual := past(run, item))), default=0.0)
    expected = [i for i, item in enumerate(columns) if explodes(run, item, strongest)]
    judged = limits.exploding(context(run))
    grave = [] if judged is None or judged.severity < 2 else sorted(judged.columns.tolist())
    assert grave == expected


def silent_since(run: Run, column: int) -> int | None:
    """The row from which on one parameter is silent; None where it is not."""
    norms, states = run.series["grad_norm"][:, column], run.state("grad_norm")[:, column]  # type: ignore[index]
    looked = [
        (row, state == State.NO_GRADIENT or norms[row] == 0)
        for row, state in enumerate(states)
        if state != State.NOT_SAMPLED and not run.scalars["skipped"][row]
    ]
    flags = [flag for _, flag in looked]
    trailing = next((i for i, flag in enumerate(reversed(flags)) if not flag), len(flags))
    before = flags[: len(flags) - trailing]
    rests, longest = [], 0
    for flag in before:
        longest = longest + 1 if flag else 0
        rests.append(longest)
    share = sum(before) / max(len(before), 1)
    stays = trailing >= 10 and share**trailing <= 1e-6
    stays = stays and (not any(before) or trailing > max(rests))
    nones = sum(state == State.NO_GRADIENT for state in states)
    enough = len(flags) >= 5 or (nones == len(flags) and len(flags) >= 3)
    always = enough and sum(flags) / max(len(flags), 1) >= 0.95
    if not (stays or always):
        return None
    if trailing >= 0.95 * sum(flags) or not always:
        return looked[len(flags) - trailing][0]
    return looked[flags.index(True)][0]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_silent_column_by_column(seed: int) -> None:
    run = made(seed)
    since = {column: silent_since(run, column) for column in range(5)}
    expected = {column: row for column, row in since.items() if row is not None}
    judged = limits.silent(context(run))
    found = {} if judged is None else {int(c): int(judged.onset[c]) for c in judged.columns}
    assert found == expected


def starved(columns: list[Samples], rows: list[int], size: float) -> set[int]:
    """Columns whose median level over these rows is far below the strongest, or nothing at all."""
    levels = {i: within(item, rows) for i, item in enumerate(columns)}
    typical = {i: median(values) / size for i, values in levels.items() if values}
    typical = {i: level for i, level in typical.items() if level > 0}
    strongest = max(typical.values(), default=0.0)
    limit = 1e-20 if strongest <= 1e-20 else 1e-4 * strongest
    return {i for i, level in typical.items() if level <= limit}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_vanishing_column_by_column(seed: int) -> None:
    run, size = made(seed), 8.0  # the root of 64 elements
    rows, columns = counted(run), [samples(run, column) for column in range(5)]
    expected = starved(columns, rows, size)
    half = rows[len(rows) // 2 :]
    late = starved(columns, half, size) if len(half) >= 8 else set()
    if len(late) > len(expected):
        expected = late
    edge = max(3, len(rows) // 10)
    for i, item in enumerate(columns):
        early = [v / size for v in within(item, rows[:edge]) if v > 0]
        end = [v / size for v in within(item, rows[-edge:]) if v > 0]
        if early and end and median(end) <= 1e-8 * min(median(early), 1.0):
            expected.add(i)
    judged = limits.vanishing(context(run))
    grave = {int(column) for item in judged if item.severity >= 2 for column in item.columns}
    assert grave == (expected if len(rows) >= 8 else set())
