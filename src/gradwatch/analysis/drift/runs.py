"""Drift between the last weights of two runs: what hashes and statistics tell without elements."""

from gradwatch.analysis.drift.results import LayerDrift
from gradwatch.result import missing
from gradwatch.run import Run
from gradwatch.stats import Stat

ELEMENTS = "needs the elements; a run keeps only their statistics"


def last_rows(run: Run) -> dict[str, int]:
    """Parameter → row of its last measured weight; those never measured are left out."""
    measured = run.measured(Stat.WEIGHT_MEAN)
    return {
        name: int(measured[:, column].nonzero()[0][-1])
        for column, name in enumerate(run.names)
        if measured[:, column].any()
    }


def from_statistics(name: str, before: tuple[Run, int], after: tuple[Run, int]) -> LayerDrift:
    """Whether anything moved is known where both runs hold the hash of the weight's bits."""
    marks = [_hash(run, row, name) for run, row in (before, after)]
    hashed = None not in marks
    unmoved = hashed and marks[0] == marks[1]
    bad = [_bad(run, row, name) for run, row in (before, after)]
    zeros = [_value(run, row, name, Stat.WEIGHT_ZERO_FRACTION) for run, row in (before, after)]
    return LayerDrift(
        count=int(_value(*after, name, Stat.WEIGHT_COUNT)),
        relative_change=0.0 if unmoved else missing(ELEMENTS),
        cosine=1.0 if unmoved else missing(ELEMENTS),
        changed_fraction=0.0 if unmoved else missing(ELEMENTS),
        sign_flip_fraction=0.0 if unmoved else missing(ELEMENTS),
        sparsity_change=zeros[1] - zeros[0],
        nonfinite_before=bad[0],
        nonfinite_after=bad[1],
    )


def _hash(run: Run, row: int, name: str) -> int | None:
    if Stat.WEIGHT_HASH not in run.recorded:
        return None
    return int(run.integers(Stat.WEIGHT_HASH)[row, run.index(name)])


def _bad(run: Run, row: int, name: str) -> int:
    return int(sum(_value(run, row, name, stat) for stat in (Stat.WEIGHT_NAN, Stat.WEIGHT_INF)))


def _value(run: Run, row: int, name: str, stat: Stat) -> float:
    return float(run.series[stat][row, run.index(name)])
