"""Rollups against buckets made row by row in plain Python."""

import io
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest

from gradwatch.stats import Family, State, row_dtype
from gradwatch.store.chunks import narrowed
from gradwatch.store.manifest import numbers_of
from gradwatch.store.parquet import Grid, Unreadable, read_footer
from gradwatch.store.rollups import merged, sealed

VALUED = [int(state) for state in State if state.has_value]


@dataclass
class Raw:
    """A file in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, length: int, offset: int) -> bytes:
        return self.data[offset : offset + length]


def drawn(family: Family, steps: int, width: int, seed: int = 0):
    """Rows and states of every kind: gaps, NaN, infinities, giants, whole columns of zeros."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((steps, width), row_dtype(family))
    for name in rows.dtype.names or ():
        shape = rows[name].shape
        if rows[name].dtype.kind == "u":
            rows[name] = 0 if name.endswith("_inf") else rng.integers(0, 2**63, shape, np.uint64)
            continue
        values = rng.normal(size=shape).round(1) * 10.0 ** rng.integers(-3, 3, shape)
        if rows[name].dtype == np.float64:
            values = np.where(rng.random(shape) < 0.1, values * 1e-60, values)
        values = np.where(rng.random(shape) < 0.1, np.nan, values)
        rows[name] = np.where(rng.random(shape) < 0.05, -np.inf, values)
    states = rng.choice([0, 0, 0, 1, 2, 5, 7], (steps, width)).astype(np.uint8)
    states[10:20] = State.NO_GRADIENT  # a bucket without a number
    return rows, states


def kept(values):
    return narrowed(values) if values.dtype == np.float64 else values


def expected(grid, rows, states, cuts):
    """Buckets of the rows between cuts, row by row."""
    out = []
    for begin, end in pairwise(cuts):
        for at, subject in enumerate(grid.ids.tolist()):
            some = [n for n in range(begin, end) if states[n, at] in VALUED]
            line = {
                "first_step": int(grid.steps[begin]),
                "last_step": int(grid.steps[end - 1]),
                "rows": end - begin,
                "subject": subject,
                "state": int(states[some[-1] if some else end - 1, at]),
                "rank": 3,
                "attempt": 1,
            }
            for name in rows.dtype.names or ():
                if rows[name].ndim > 2:
                    continue
                values = kept(rows[name])[:, at].tolist()
                last = values[end - 1] if end - 1 in some else None
                line[f"{name}_last"] = last
                if name == "weight_hash":
                    continue
                finite = {n: values[n] for n in some if np.isfinite(values[n])}
                line[f"{name}_count"] = len(finite)
                low = min(finite, key=finite.__getitem__, default=None)
                high = max(finite, key=finite.__getitem__, default=None)
                line[f"{name}_min"] = None if low is None else finite[low]
                line[f"{name}_max"] = None if high is None else finite[high]
                line[f"{name}_min_step"] = None if low is None else int(grid.steps[low])
                line[f"{name}_max_step"] = None if high is None else int(grid.steps[high])
                line[f"{name}_sum"] = list(finite.values()) if finite else None
            out.append(line)
    return out


def check(raw, entry, lines):
    """The file holds these buckets, for us and for other programs."""
    table = pq.read_table(io.BytesIO(bytes(raw))).to_pylist()
    assert entry.rows == len(table) == len(lines)
    assert set(table[0]) == set(lines[0])
    for got, wanted in zip(table, lines, strict=True):
        for name, value in wanted.items():
            if name.endswith("_sum") and value is not None:
                most = 1e-6 * sum(abs(number) for number in value)
                assert got[name] == pytest.approx(float(sum(value)), abs=most), name
            else:
                assert got[name] == value or (value != value and got[name] != got[name]), name


@pytest.mark.parametrize("family", [Family.GRAD, Family.WEIGHT])
@pytest.mark.parametrize("width", [1, 3])
def test_buckets_of_ten(family, width):
    grid = Grid(np.arange(5, 5 + 2 * 47, 2), np.arange(7, 7 + width, dtype=np.uint32))
    rows, states = drawn(family, 47, width)
    raw, entry = sealed(f"rollups/{family}-10/00004.parquet", [(grid, rows, states)], 3, 1)
    check(raw, entry, expected(grid, rows, states, [0, 10, 20, 30, 40, 47]))
    assert numbers_of(entry.steps).tolist() == grid.steps.tolist()
    (kept_grid,) = read_footer(Raw(bytes(raw)), entry).grids
    assert kept_grid.sizes is not None
    assert kept_grid.sizes.tolist() == [10, 10, 10, 10, 7]
    assert kept_grid.steps.tolist() == grid.steps.tolist()


def test_grids_of_other_subjects_stay_apart():
    tables = []
    lines = []
    for seed, ids in enumerate(([1, 2], [9])):
        grid = Grid(np.arange(15), np.array(ids, np.uint32))
        tables.append((grid, *drawn(Family.UPDATE, 15, len(ids), seed)))
        lines += expected(*tables[-1], [0, 10, 15])
    raw, entry = sealed("rollups/update-10/00001.parquet", tables, 3, 1)
    check(raw, entry, lines)


@pytest.mark.parametrize("family", [Family.GRAD, Family.WEIGHT])
def test_merged_buckets_are_those_of_all_rows(family):
    """Files of 47 rows: buckets are combined while at most a hundred rows are in one."""
    grid = Grid(np.arange(0, 470), np.arange(3, dtype=np.uint32))
    rows, states = drawn(family, 470, 3)
    sources = []
    for number in range(10):
        part = slice(47 * number, 47 * number + 47)
        own = Grid(grid.steps[part], grid.ids)
        raw, entry = sealed(
            f"rollups/{family}-10/{number:05}.parquet", [(own, rows[part], states[part])], 3, 1
        )
        sources.append((Raw(bytes(raw)), entry))
    raw, entry = merged(f"rollups/{family}-100/00009.parquet", sources, 100)
    check(raw, entry, expected(grid, rows, states, [0, 94, 188, 282, 376, 470]))
    raw, entry = merged(f"rollups/{family}-1000/00009.parquet", [(Raw(bytes(raw)), entry)], 1000)
    check(raw, entry, expected(grid, rows, states, [0, 470]))


def test_a_source_that_was_changed_is_refused():
    grid = Grid(np.arange(20), np.arange(2, dtype=np.uint32))
    raw, entry = sealed("rollups/grad-10/00001.parquet", [(grid, *drawn(Family.GRAD, 20, 2))], 0, 0)
    broken = bytearray(raw)
    place = read_footer(Raw(bytes(raw)), entry).columns["grad_norm_min"]
    broken[place.offset + place.size // 2] ^= 1
    with pytest.raises(Unreadable, match="grad_norm_min"):
        merged("rollups/grad-100/00001.parquet", [(Raw(bytes(broken)), entry)], 100)
