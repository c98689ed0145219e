"""Windows from stored levels, and rollups in place of rows: held against the rows themselves."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from tests.store.test_rollups import VALUED, Raw, drawn, kept
from tests.store.trial import Trial, sealing_at

from gradwatch.run import downsample as run_downsample
from gradwatch.run.downsample import downsample
from gradwatch.stats import Family, Stat, State, row_dtype
from gradwatch.store import Retention, open_run, rank
from gradwatch.store.chunks import GridChunk, SealedTable
from gradwatch.store.downsample import LevelReader, RollupChunk, joined_buckets, level_for
from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import Grid, Unreadable, directly, encoded, read_footer
from gradwatch.store.rollups import SIZES, merged, sealed

JOURNAL = 47
"""Rows of a subject in each journal: no whole number of buckets."""


@dataclass
class Folder:
    """Sealed files in memory, made from rows as a writer makes them."""

    grid: Grid
    rows: np.ndarray
    states: np.ndarray
    files: dict[str, tuple[Raw, SealedFile]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def seal(self, coarse: int = 10, closed: bool = False) -> "Folder":
        levels: dict[int, list[SealedFile]] = {size: [] for size in SIZES}
        count = -(-len(self.grid.steps) // JOURNAL)
        for number in range(1, count + 1):
            part = slice(JOURNAL * (number - 1), JOURNAL * number)
            table = (Grid(self.grid.steps[part], self.grid.ids), self.rows[part], self.states[part])
            file = f"rollups/grad-10/{number:05d}.parquet"
            levels[10].append(self._put(*sealed(file, [table], 0, 0)))
            self._put(*_row_file(number, *table))
        for fine, size in pairwise(SIZES):
            whole = levels[fine] if closed else levels[fine][: len(levels[fine]) // coarse * coarse]
            for at in range(0, len(whole), coarse):
                batch = whole[at : at + coarse]
                file = f"rollups/grad-{size}/{batch[-1].number:05d}.parquet"
                sources = [self.files[entry.file] for entry in batch]
                levels[size].append(self._put(*merged(file, sources, size)))
        return self

    def _put(self, raw: memoryview, entry: SealedFile) -> SealedFile:
        self.files[entry.file] = Raw(bytes(raw)), entry
        return entry

    def read(self, entry: SealedFile) -> list[GridChunk]:
        self.asked.append(entry.group)
        access, _ = self.files[entry.file]
        return SealedTable(entry, access, read_footer(access, entry), directly).chunks()

    def rows_of(self, after: int, upto: int | None, first: int, last: int):
        for _, entry in self.files.values():
            wanted = after < entry.number and (upto is None or entry.number <= upto)
            if (
                entry.kind == "rows"
                and wanted
                and first <= entry.last_step
                and last >= entry.first_step
            ):
                yield from self.read(entry)

    def reader(self, stat: Stat) -> LevelReader:
        made = [entry for _, entry in self.files.values()]
        files = [[e for e in made if e.group == f"{stat.family}-{size}"] for size in SIZES]
        return LevelReader(stat, files, self.read, self.rows_of)


def _row_file(number, grid, rows, states):
    columns = {"state": states.reshape(-1)}
    for name in rows.dtype.names:
        if rows[name].ndim == 2:
            columns[name] = kept(rows[name]).reshape(-1)
    valid = np.isin(states, VALUED).reshape(-1)
    masks = {name: valid for name in columns if name != "state"}
    return encoded(
        f"rows/grad/{number:05d}.parquet", columns, steps=grid.steps, grids=[grid], valid=masks
    )


@pytest.fixture(scope="module")
def folder() -> Folder:
    """1,500 rows: 32 files of the first level, by threes ten of the second and three more."""
    grid = Grid(np.arange(0, 4500, 3), np.array([4, 7, 9], np.uint32))
    rows, states = drawn(Family.GRAD, 1500, 3)
    return Folder(grid, rows, states).seal(coarse=3)


def true_values(folder: Folder, stat: str) -> np.ndarray:
    values = kept(folder.rows[stat]).astype(float)
    values = np.where(np.isin(folder.states, VALUED), values, np.nan)
    return np.where(np.isfinite(values), values, np.nan)


@pytest.mark.parametrize("stat", ["grad_norm", "grad_count"])
@pytest.mark.parametrize("stretch", [(0, 4497), (203, 4000), (1000, 1100), (4200, 4496)])
@pytest.mark.parametrize("level", [-1, 0, 1, 2])
def test_every_row_is_in_one_bucket_and_no_extreme_is_lost(folder, stat, stretch, level):
    true, steps = true_values(folder, stat), folder.grid.steps
    seen = np.zeros(len(steps), int)
    for part in folder.reader(Stat(stat)).buckets(level, *stretch):
        for at in range(len(part.first)):
            rows = (steps >= part.first[at]) & (steps <= part.last[at])
            assert rows.sum() == part.sizes[at]
            seen += rows
            _same_extremes(part.low[at], part.high[at], true[rows])
    assert (seen == ((steps >= stretch[0]) & (steps <= stretch[1]))).all()


def _same_extremes(low, high, rows):
    some = ~np.isnan(rows).all(axis=0)
    assert (np.isnan(low) == ~some).all()
    assert (low[some] == np.nanmin(rows[:, some], axis=0)).all()
    assert (high[some] == np.nanmax(rows[:, some], axis=0)).all()


@pytest.mark.parametrize("points", [1, 4, 20, 110])
@pytest.mark.parametrize("stretch", [(0, 4497), (203, 4000)])
def test_points_are_those_of_the_series(folder, points, stretch):
    true, steps = true_values(folder, "grad_norm"), folder.grid.steps
    rows = int(((steps >= stretch[0]) & (steps <= stretch[1])).sum())
    parts = list(folder.reader(Stat.GRAD_NORM).buckets(level_for(rows, points), *stretch))
    bands = joined_buckets(parts, {4: 2, 7: 0, 9: 1}, 3, points)
    assert points / 2 <= len(bands.first_steps) <= points
    assert bands.first_steps[0] == -(-stretch[0] // 3) * 3
    assert bands.last_steps[-1] == stretch[1] // 3 * 3
    assert (bands.first_steps[1:] == bands.last_steps[:-1] + 3).all()
    for at, (first, last) in enumerate(zip(bands.first_steps, bands.last_steps, strict=True)):
        whole = downsample(steps, true[:, [1, 2, 0]], first, last, 1)
        for mine, theirs in ((bands.low, whole.low), (bands.high, whole.high)):
            assert np.array_equal(mine[at], theirs[0], equal_nan=True)


def test_the_last_number_is_the_newest_of_whole_rows():
    rows = np.zeros((470, 2), row_dtype(Family.GRAD))
    rows["grad_norm"] = np.arange(940).reshape(470, 2)
    grid = Grid(np.arange(470), np.arange(2, dtype=np.uint32))
    made = Folder(grid, rows, np.zeros((470, 2), np.uint8)).seal()
    parts = list(made.reader(Stat.GRAD_NORM).buckets(1, 0, 469))
    bands = joined_buckets(parts, {0: 0, 1: 1}, 2, 3)
    assert (bands.last == np.arange(940).reshape(470, 2)[bands.last_steps]).all()


def test_a_long_range_reads_coarse_files_and_fine_ones_only_where_it_must(folder):
    folder.asked.clear()
    list(folder.reader(Stat.GRAD_NORM).buckets(2, 0, 4497))
    assert sorted(folder.asked) == ["grad-10"] * 2 + ["grad-100"] + ["grad-1000"] * 3
    folder.asked.clear()
    list(folder.reader(Stat.GRAD_NORM).buckets(2, 301, 4497))
    assert folder.asked.count("grad") <= 2


def test_a_finished_run_has_every_level_complete():
    grid = Grid(np.arange(300), np.arange(2, dtype=np.uint32))
    made = Folder(grid, *drawn(Family.GRAD, 300, 2)).seal(coarse=3, closed=True)
    list(made.reader(Stat.GRAD_NORM).buckets(2, 0, 299))
    assert set(made.asked) == {"grad-1000"}


def test_levels():
    assert [level_for(rows, 800) for rows in (9_999, 10_000, 100_000, 1_000_000)] == [-1, 0, 1, 2]


@pytest.mark.parametrize("stat", ["grad_norm", "grad_count", "grad_inf", "weight_hash"])
def test_stand_ins_have_true_values_on_their_own_steps(stat):
    family = Stat(stat).family
    grid = Grid(np.arange(5, 99, 2), np.array([4, 7, 9], np.uint32))
    rows, states = drawn(family, 47, 3)
    raw, entry = sealed(f"rollups/{family}-10/00001.parquet", [(grid, rows, states)], 0, 0)
    access = Raw(bytes(raw))
    (base,) = SealedTable(entry, access, read_footer(access, entry), directly).chunks()
    chunk = RollupChunk.near(base, 26, 60)
    assert Stat(stat) in chunk.stats
    assert Stat.GRAD_SKETCH not in chunk.stats
    assert chunk.steps.tolist() == list(range(25, 65, 2))
    part = slice(10, 30)
    got, state = chunk.column(Stat(stat)), chunk.states(Stat(stat))
    filled = state != State.NOT_SAMPLED
    true = kept(rows[stat])[part]
    has_value = np.isin(state, VALUED)
    assert np.isin(states[part][has_value], VALUED).all()
    assert np.array_equal(got[has_value], true[has_value], equal_nan=True)
    for begin in (0, 10):
        for at in range(3):
            own = slice(begin, begin + 10)
            last = states[part][own][-1, at]
            assert not filled[begin + 9, at] or state[begin + 9, at] in (last, *VALUED)
            valued = np.isin(states[part][own, at], VALUED)
            finite = true[own, at][valued & np.isfinite(true[own, at])]
            shown = got[own, at][has_value[own, at]]
            if len(finite) and stat != "weight_hash":
                shown = shown[np.isfinite(shown)]
                assert (shown.min(), shown.max()) == (finite.min(), finite.max())
            if last in VALUED:
                assert has_value[begin + 9, at]


@pytest.mark.parametrize("keep", [None, Retention(bytes=1)])
def test_windows_of_a_run_that_was_written(tmp_path, monkeypatch, keep):
    """The oldest rows may be gone: the levels have every extreme."""
    with sealing_at(40_000):
        trial = Trial(tmp_path / "run", tensors=3, families=(Family.GRAD,), keep=keep)
        trial.steps(range(400))
        trial.close()
    run = open_run(tmp_path / "run")
    kept_files = len(list((tmp_path / "run").glob("*/rows/grad/*.parquet")))
    assert kept_files == 1 if keep else kept_files > 1
    assert trial.check(run, thinned=keep is not None) > 100
    true = np.full((400, 3), np.nan)
    for (_, step), (rows, states) in trial.truth.items():
        values = np.where(np.isin(states, VALUED), kept(rows["grad_norm"]), np.nan)
        true[step] = np.where(np.isfinite(values), values, np.nan)
    few = run.window(0, 399, points=20).stat("grad_norm")  # rows that are gone are not forgotten
    for at, (first, last) in enumerate(zip(few.first_steps, few.last_steps, strict=True)):
        _same_extremes(few.low[at], few.high[at], true[first : last + 1])
    monkeypatch.setattr(rank, "LITTLE_CELLS", 0)
    monkeypatch.setattr(run_downsample, "downsample", None)  # the levels must do
    monkeypatch.setattr(type(run.source), "load", None)
    for stretch in ((0, 399), (83, 361)):
        bands = run.window(*stretch, points=20).stat("grad_norm")
        assert 10 <= len(bands.first_steps) <= 20
        assert (bands.first_steps[0], bands.last_steps[-1]) == stretch
        for at, (first, last) in enumerate(zip(bands.first_steps, bands.last_steps, strict=True)):
            part = true[first : last + 1]
            if keep is None or stretch == (0, 399):
                _same_extremes(bands.low[at], bands.high[at], part)
            assert (np.nan_to_num(bands.high[at], nan=-np.inf) <= np.nanmax(part, axis=0)).all()


def test_a_step_outside_of_its_bucket_is_laid_nowhere():
    """Two buckets of ten rows; the first one's lowest value claims to be of the second's steps."""
    grid = Grid(np.arange(20), np.array([3], np.uint32), np.array([10, 10]))
    columns = {
        "state": np.zeros(2, np.uint8),
        **{f"grad_norm_{part}": np.array([1.0, 2.0]) for part in ("min", "max", "last")},
        "grad_norm_min_step": np.array([15, 99]),
        "grad_norm_max_step": np.array([-1, 12]),
    }
    file = "rollups/grad-10/00001.parquet"
    raw, entry = encoded(file, columns, steps=grid.steps, grids=[grid])
    access = Raw(bytes(raw))
    (base,) = SealedTable(entry, access, read_footer(access, entry), directly).chunks()
    chunk = RollupChunk.near(base, 0, 19)
    sampled = np.flatnonzero(chunk.states(Stat.GRAD_NORM)[:, 0] == State.MEASURED)
    assert sampled.tolist() == [9, 12, 19]
    assert chunk.column(Stat.GRAD_NORM)[sampled, 0].tolist() == [1.0, 2.0, 2.0]


def test_steps_without_order_are_refused():
    """A forged grid whose every bucket reaches over the ends of the range."""
    steps = np.tile([0, 1000], 100)
    grid = Grid(steps, np.array([3], np.uint32), np.full(100, 2))
    columns = {f"grad_norm_{part}": np.zeros(100) for part in ("min", "max", "last")}
    file = "rollups/grad-10/00001.parquet"
    raw, entry = encoded(file, columns, steps=steps, grids=[grid])
    made = Folder(grid, np.empty(0), np.empty(0), {file: (Raw(bytes(raw)), entry)})
    with pytest.raises(Unreadable, match="order"):
        list(made.reader(Stat.GRAD_NORM).buckets(0, 10, 20))


def test_subjects_that_came_after_the_opening_are_left_out(folder):
    parts = list(folder.reader(Stat.GRAD_NORM).buckets(1, 0, 4497))
    whole = joined_buckets(parts, {4: 0, 7: 1, 9: 2}, 3, 5)
    fewer = joined_buckets(parts, {4: 0, 7: -1, 9: 1}, 2, 5)
    assert np.array_equal(fewer.low, whole.low[:, [0, 2]], equal_nan=True)
