"""The limits of gradients, their cells, and how grave it is to be beyond one."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.checks.shapes import STUCK, gradients, make_run, table, weight

from gradwatch.checks import limits
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.checks.limits import Rule
from gradwatch.diagnosis import diagnose
from gradwatch.finding import Severity
from gradwatch.run import Run

CELLS: dict[str, Callable[[CheckContext], Mask]] = {
    "vanishing-gradient": limits.vanishing_cells,
    "exploding-gradient": limits.exploding_cells,
    "nonfinite": limits.nonfinite_cells,
}


def spiky(steps: int, at: int, high: float) -> np.ndarray:
    column = np.ones(steps)
    column[at:] = high
    return column


def made(seed: int) -> Run:
    """Four columns of any of a few shapes, healthy and sick."""
    random = np.random.default_rng(seed)
    steps = int(random.integers(6, 80))
    noise = random.lognormal(0, 0.3, (steps, 4))
    shapes = [
        np.ones(steps),
        np.full(steps, 10.0 ** random.integers(-32, 8)),
        np.geomspace(1, 10.0 ** random.integers(-14, 9), steps),
        spiky(steps, int(random.integers(1, steps)), 10.0 ** random.integers(2, 9)),
        spiky(steps, int(random.integers(1, steps)), 0.0),
        spiky(steps, int(random.integers(1, steps)), np.nan),
    ]
    columns = np.column_stack([shapes[i] for i in random.integers(0, len(shapes), 4)]) * noise
    losses = [None, np.full(steps, 1.6), np.geomspace(1.6, 0.01, steps)]
    loss = losses[random.integers(0, 3)]
    scalars = {} if loss is None else {"loss": loss}
    return Run.from_norms({f"l{i}": columns[:, i] for i in range(4)}, scalars=scalars)


@pytest.mark.parametrize("seed", range(60))
def test_a_parameter_has_cells_exactly_where_a_finding_names_it(seed: int) -> None:
    run = made(seed)
    findings = [f for f in diagnose(run).everything() if f.severity >= Severity.WARNING]
    for check, cells in CELLS.items():
        named = {
            name
            for item in findings
            if item.check == check
            for name in (item.tensors or item.layers)
        }
        marked = np.flatnonzero(cells(context(run)).any(axis=0))
        assert {run.names[column] for column in marked} == named, check


def test_cells_are_the_steps_beyond_the_limit() -> None:
    late = spiky(60, 40, 5e3)
    run = gradients(late, spiky(60, 45, 0.0), 1.0, scalars={"loss": STUCK})
    exploding = limits.exploding_cells(context(run))
    assert np.flatnonzero(exploding[:, 0]).tolist() == list(range(40, 60))
    assert not exploding[:, 1:].any()
    fading = gradients(np.geomspace(1, 1e-12, 60), 1.0, 1.0, scalars={"loss": STUCK})
    cells = limits.vanishing_cells(context(fading))
    assert cells[-1].tolist() == [True, False, False]
    assert not cells[:15].any()


def test_skipped_steps_are_not_nonfinite() -> None:
    counts = table([0.0, 0.0], 10)
    counts[[3, 7]] = 4.0
    skipped = np.zeros(10)
    skipped[3] = 1.0
    run = make_run(
        {"grad_norm": table([1.0, 1.0], 10), "grad_nan": counts},
        subjects=[weight("a"), weight("b")],
        scalars={"skipped": skipped},
    )
    cells = limits.nonfinite_cells(context(run))
    assert np.flatnonzero(cells.any(axis=1)).tolist() == [7]


def test_a_long_run_is_judged_in_blocks_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        first, again = made(seed), made(seed)
        exploding, vanishing = (
            limits.exploding_cells(context(first)),
            limits.vanishing_cells(context(first)),
        )
        total = context(first).total_gradient
        with monkeypatch.context() as patch:
            patch.setattr("gradwatch.checks.context.BLOCK", 12)
            assert (limits.exploding_cells(context(again)) == exploding).all()
            assert (limits.vanishing_cells(context(again)) == vanishing).all()
            np.testing.assert_array_equal(context(again).total_gradient, total)


def test_a_training_that_goes_well_makes_it_less_grave() -> None:
    stuck = context(gradients(1.0, 1.0, 1.0, scalars={"loss": STUCK}))
    learnt = context(gradients(1.0, 1.0, 1.0, scalars={"loss": STUCK * np.geomspace(1, 0.01, 60)}))
    for rule in (Rule.STARVED, Rule.FAINT):
        assert limits.severity(stuck, rule, Severity.WARNING) is Severity.WARNING
        assert limits.severity(learnt, rule, Severity.WARNING) is Severity.INFO
    assert limits.severity(learnt, Rule.SILENT, Severity.CRITICAL) is Severity.CRITICAL
    assert limits.severity(learnt, Rule.NON_FINITE, Severity.CRITICAL) is Severity.CRITICAL
