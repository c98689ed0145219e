"""Small runs with their truth beside them: what the tests of the store write and compare with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tests import second_reader

from gradwatch.run import Run, Subject
from gradwatch.stats import Family, Kind, Stat, State, row_dtype
from gradwatch.store import Retention, Writer, open_run, writer_thread

WAIT = 60.0
VALUED = [int(state) for state in State if state.has_value]


def subjects(count: int, kind: Kind = Kind.PARAMETER, stem: str = "layer") -> list[Subject]:
    return [
        Subject(kind, f"{stem}{n}.weight", f"{stem}{n}", (3, 4), "float32", 12, 0)
        for n in range(count)
    ]


def random_rows(rng: np.random.Generator, family: Family, count: int) -> np.ndarray:
    """Rows with numbers of every size, some not finite, some beyond 32 bits."""
    rows = np.zeros(count, row_dtype(family))
    for name in rows.dtype.names or ():
        shape = rows[name].shape
        if rows[name].dtype.kind == "u":
            rows[name] = rng.integers(0, 2**63, shape, dtype=np.uint64) >> rng.integers(
                0, 63, shape, dtype=np.uint64
            )
            continue
        values = rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6, shape)
        odd = rng.random(shape)
        values = np.where(odd < 0.02, np.nan, np.where(odd > 0.99, np.inf, values))
        if rows[name].dtype == np.float64 and rng.random() < 0.05:
            values = values * 1e-200
        rows[name] = values
    return rows


def kept(values: np.ndarray) -> np.ndarray:
    """What the store promises to give back of a column of rows (docs/format.md, Rounding)."""
    rounded: np.ndarray = second_reader.rounded(np.ascontiguousarray(values)[None])[0]
    return rounded.astype(float)


@contextmanager
def sealing_at(size: int) -> Iterator[None]:
    """Journals are sealed at `size` bytes and always at the end."""
    before = writer_thread.SEAL_BYTES
    writer_thread.SEAL_BYTES = size
    try:
        yield
    finally:
        writer_thread.SEAL_BYTES = before


class Trial:
    """A writer and everything that was put into it."""

    def __init__(
        self,
        path: Path,
        *,
        seed: int = 0,
        tensors: int = 4,
        families: Sequence[Family] = (Family.GRAD, Family.WEIGHT),
        keep: Retention | None = None,
        **options: object,
    ) -> None:
        self.path = path
        self.writer = Writer.create(path, name="trial", keep=keep, **options)  # type: ignore[arg-type]
        self.rng = np.random.default_rng(seed)
        self.subjects = subjects(tensors)
        self.ids = self.writer.declare(self.subjects)
        self.families = families
        self.truth: dict[tuple[Family, int], tuple[np.ndarray, np.ndarray]] = {}
        self.loss: dict[int, float] = {}

    def step(self, step: int) -> None:
        for number, family in enumerate(self.families):
            if step % (1 + 3 * number):
                continue
            rows = random_rows(self.rng, family, len(self.ids))
            states = self.rng.choice([0, 0, 0, 2, 5], len(self.ids)).astype(np.uint8)
            self.truth[family, step] = rows.copy(), states.copy()
            self.writer.put(family, step, self.ids, rows, states)
        self.loss[step] = float(self.rng.normal())
        self.writer.scalars(step, {"loss": self.loss[step]})

    def steps(self, numbers: range, flush_every: int = 50) -> "Trial":
        for number in numbers:
            self.step(number)
            if number % flush_every == flush_every - 1:
                assert self.writer.flush(WAIT)
        return self

    def close(self) -> Path:
        assert self.writer.close(WAIT)
        assert self.writer.thread.finished.wait(WAIT)
        assert self.writer.dropped == 0
        return self.path

    def check(self, run: Run, *, thinned: bool = False) -> int:
        """Every value the run has is the true one; unless `thinned`, it has every value."""
        compared = 0
        names = [subject.name for subject in self.subjects]
        columns = [run.index(name) for name in names]
        for (_, step), (rows, states) in self.truth.items():
            (at,) = np.flatnonzero(run.steps == step)
            for name in rows.dtype.names or ():
                stat = Stat(name)
                if stat not in run.recorded:
                    continue
                got, state = run.series[stat][at][columns], run.state(stat)[at][columns]
                expected = kept(rows[name])
                if thinned:
                    other = state != states
                    assert np.isin(state[other], [State.NOT_SAMPLED, *VALUED]).all(), name
                    assert np.isin(states[np.isin(state, VALUED)], VALUED).all(), name
                else:
                    assert (state == states).all(), (name, step)
                valued = np.isin(state, VALUED)
                assert np.array_equal(got[valued], expected[valued], equal_nan=True), (name, step)
                assert np.isnan(got[~valued]).all()
                compared += int(valued.sum())
        losses = run.scalars["loss"]
        for step, value in self.loss.items():
            assert losses[np.flatnonzero(run.steps == step)[0]] == value
        return compared


def both_readers_agree(path: Path) -> int:
    """The package and the second reader see the same numbers; how many were compared."""
    mine, theirs = open_run(path), second_reader.read(path)
    compared = 0
    for rank, other in theirs.items():
        run = mine.source.ranks[rank]  # type: ignore[attr-defined]
        assert run.steps.tolist() == other["steps"]
        row = {step: at for at, step in enumerate(other["steps"])}
        for stat, table in other["cells"].items():
            values, states = run.series[stat], run.state(stat)
            whole = run.integers(stat) if values.ndim == 2 else None
            column = {subject.name: n for n, subject in enumerate(run.by_kind[kind_of(stat)])}
            for (step, name), (value, state) in table.items():
                at = row[step], column[name]
                assert states[at] == state, (stat, step, name)
                if state not in VALUED:
                    assert np.isnan(values[at]).all()
                    continue
                assert np.array_equal(values[at], np.asarray(value, float), equal_nan=True)
                if whole is not None and np.asarray(value).dtype.kind == "u":
                    assert int(whole[at]) == int(value)
                compared += 1
        for name, logged in other["scalars"].items():
            for at_step, scalar in logged.items():
                assert np.array_equal(run.scalars[name][row[at_step]], scalar, equal_nan=True)
                compared += 1
    return compared


def kind_of(stat: str) -> Kind:
    return Stat(stat).kind
