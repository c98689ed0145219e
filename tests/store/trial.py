"""Small runs with their truth beside them: what the tests of the store write and compare with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gradwatch.run import Run, Subject
from gradwatch.stats import Family, Kind, Stat, State, row_dtype
from gradwatch.store import Retention, Writer
from gradwatch.store import writer as writer_thread

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
    """What the store promises to give back of a column: float64 with the digits of float32."""
    if values.dtype != np.float64:
        return values.astype(float)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        short = values.astype(np.float32)
    tiny = np.finfo(np.float32).tiny
    fits = np.isfinite(short) & ((np.abs(values) >= tiny) | (values == 0)) | ~np.isfinite(values)
    return np.where(fits, short.astype(float), values)


@contextmanager
def finishing_at(size: int) -> Iterator[None]:
    """Parts are finished at `size` bytes and always at the end."""
    before = writer_thread.PART_BYTES
    writer_thread.PART_BYTES = size
    try:
        yield
    finally:
        writer_thread.PART_BYTES = before


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
        assert self.writer.finished.wait(WAIT)
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
