"""`Loaded`: a table of the sampled rows gives what a table of all rows would."""

import numpy as np
from tests.making import make_run

from gradwatch.run.source import Loaded
from gradwatch.stats import State

ROWS, COLUMNS = 60, 4


def sparse(rng: np.random.Generator) -> tuple[Loaded, Loaded]:
    """A table of all rows, and the same without those of which nothing was sampled."""
    values = rng.normal(size=(ROWS, COLUMNS))
    states = rng.integers(0, 8, (ROWS, COLUMNS)).astype(np.uint8)
    gone = rng.random(ROWS) < rng.uniform(0.55, 1.0)
    gone |= (states == State.NOT_SAMPLED).all(axis=1)
    values[gone], states[gone] = np.nan, State.NOT_SAMPLED
    whole = Loaded(values, states)
    return whole, whole.compact()


def test_every_way_of_asking_gives_what_the_whole_table_has() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        whole, compact = sparse(rng)
        if compact.rows is not None:
            assert len(compact.values) == len(compact.rows) < ROWS / 2 + 1
        again = compact.whole(ROWS)
        np.testing.assert_array_equal(again.values, whole.values)
        np.testing.assert_array_equal(again.states, whole.states)
        rows = rng.integers(0, ROWS, 7)
        columns = rng.integers(0, COLUMNS, 7)
        for asked in (
            (rows,),
            (int(rows[0]),),
            (rows, columns),
            (rows, int(columns[0])),
            np.ix_(rows, columns),
            (np.arange(ROWS),),
        ):
            np.testing.assert_array_equal(compact.at(*asked), whole.values[asked])
            np.testing.assert_array_equal(compact.states_at(*asked), whole.states[asked])


def test_a_table_of_which_nothing_was_sampled() -> None:
    none = Loaded(np.full((5, 2), np.nan), np.full((5, 2), State.NOT_SAMPLED, np.uint8)).compact()
    assert none.values.shape == (0, 2)
    assert np.isnan(none.at(np.array([1, 3]))).all()
    assert (none.states_at(2, 1) == State.NOT_SAMPLED).all()
    assert np.isnan(none.whole(5).values).all()


def test_what_is_sampled_on_most_rows_stays_as_it_is() -> None:
    table = Loaded(np.zeros((4, 1)), np.array([[0], [0], [0], [1]], np.uint8))
    assert table.compact() is table


def test_nothing_is_copied_where_all_that_is_held_is_asked_for() -> None:
    whole, compact = sparse(np.random.default_rng(0))
    assert compact.rows is not None
    assert compact.at(compact.rows) is compact.values
    assert whole.at(np.arange(ROWS)) is whole.values


def test_a_run_tells_which_rows_to_look_at() -> None:
    norms = np.array([[1.0], [np.nan], [3.0]])
    states = np.array([[State.MEASURED], [State.NO_GRADIENT], [State.SAMPLED]], np.uint8)
    run = make_run({"grad_norm": norms}, states={"grad_norm": states})
    assert run.sampled("grad_norm").tolist() == [0, 1, 2]
    assert run.measured_rows("grad_norm").tolist() == [0, 2]
    assert run.sampled("weight_norm").tolist() == run.measured_rows("weight_norm").tolist() == []
    assert run.at("grad_norm", [2, 0], 0).tolist() == [3.0, 1.0]
