"""Arrow record batches: of what a training hands over, of coarse rows, of finished parts."""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE, Family, family_stats, row_dtype
from gradwatch.store.layout import BUCKET, STEPS, drawn, schemas
from gradwatch.store.tables import as_numpy, parquet

_LARGEST = np.finfo(np.float32).max
YIELD = 0.0001
"""Seconds of sleep between pieces of work: the training may want the interpreter."""


class Item(NamedTuple):
    """What one call hands over: rows or histograms of a family on a step, or one number."""

    table: str
    step: int
    ids: Any
    """The subject of each row; as many as it has rows."""
    data: Any
    """Rows and states, a `HistogramTable`, or a name and a value."""
    bit: int
    """What it says of its step in the table of steps."""
    bytes: int
    """The memory that it takes while it waits."""


def batch_of(items: Sequence[Item]) -> pa.RecordBatch:
    """Items of one table as a batch."""
    kind, _, family = items[0].table.partition("/")
    steps = np.repeat([item.step for item in items], [len(item.ids) for item in items])
    if kind == "rows":
        columns = _rows(items, Family(family))
    else:
        columns = _histograms(items) if kind == "histograms" else _scalars(items)
    return record_batch(items[0].table, [steps, *columns])


def _rows(items: Sequence[Item], family: Family) -> list[Any]:
    """Columns of rows; null where a state has no number."""
    # Joined as bytes: `concatenate` would compare all fields of every item.
    rows = np.frombuffer(b"".join(item.data[0].tobytes() for item in items), row_dtype(family))
    states = np.concatenate([item.data[1] for item in items])
    valued = HAS_VALUE[states]
    mask = None if valued.all() else pa.py_buffer(np.packbits(valued, bitorder="little"))
    columns = [np.concatenate([item.ids for item in items]).astype(np.uint32, copy=False), states]
    reals = [stat for stat in family_stats(family) if stat.dtype == "<f8"]
    # All at once: a call of numpy costs more than the numbers of one column.
    short = dict(zip(reals, rounded(np.array([rows[stat] for stat in reals])), strict=True))
    time.sleep(YIELD)
    values = (np.ascontiguousarray(short.get(stat, rows[stat])) for stat in family_stats(family))
    return [*columns, *(as_array(column, mask) for column in values)]


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Float64 with the digits of float32, which compress well; beyond its range all digits."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        short = values.astype(np.float32).astype(np.float64)
    size = np.abs(short)
    # Below about 1.2e-38 a float32 is subnormal and loses digits; above 3.4e38 it is infinite.
    beyond = ((size < 1.2e-38) & (values != 0)) | np.isinf(size)
    return np.where(beyond, values, short) if beyond.any() else short


def _histograms(items: Sequence[Item]) -> list[Any]:
    names = ("sizes", "counts", "others", "first_exponents")
    sizes, counts, others, exponents = (
        np.concatenate([getattr(item.data, name) for item in items]) for name in names
    )
    # Each has its negative bins, then as many positive ones.
    negative = np.repeat(np.tile([True, False], len(sizes)), np.repeat(sizes, 2))
    offsets = as_array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    sides = (as_array(counts[side]) for side in (negative, ~negative))
    lists = [pa.ListArray.from_arrays(offsets, side) for side in sides]
    ids = np.concatenate([item.ids for item in items]).astype(np.uint32)
    return [ids, exponents.astype(np.int32), *lists, *np.ascontiguousarray(others.T)]


def _scalars(items: Sequence[Item]) -> list[Any]:
    names, values = zip(*(item.data for item in items))  # noqa: B905
    return [_texts(names), np.array(values, np.float64)]


def _texts(names: Sequence[str]) -> pa.Array:
    """From their bytes, as in `as_array`; UTF-8 has no half characters, Python's names may."""
    raw = [name.encode("utf-8", "backslashreplace") for name in names]
    ends = np.cumsum([0, *map(len, raw)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(raw))]
    return pa.Array.from_buffers(pa.string(), len(raw), buffers)


def steps_batch(marks: dict[int, int]) -> pa.RecordBatch:
    """Steps and which families were recorded on them."""
    return record_batch(STEPS, [np.array([*marks]), np.array([*marks.values()], np.uint16)])


def finished_columns(table: pa.Table, subjects: Any, rank: int, attempt: int) -> pa.Table:
    """With `name`, `rank` and `attempt`, so that other programs need no join.

    `subjects` are kind and name of each, by their numbers.
    """
    if "subject" not in table.schema.names:
        return table
    numbers = as_array(as_numpy(table["subject"]).astype(np.int32))
    called = pa.DictionaryArray.from_arrays(numbers, _texts([name for _, name in subjects]))
    table = table.add_column(table.schema.get_field_index("subject") + 1, "name", called)
    for name, number in (("rank", rank), ("attempt", attempt)):
        table = table.append_column(name, as_array(np.full(len(table), number, np.int32)))
    return table


def record_batch(table: str, columns: Sequence[Any]) -> pa.RecordBatch:
    """A batch of a table from arrays of numpy or of Arrow."""
    arrays = [as_array(found) if isinstance(found, np.ndarray) else found for found in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schemas()[table])


def as_array(values: NDArray[Any], mask: pa.Buffer | None = None) -> pa.Array:
    """From its bytes: `pa.array` of numpy would import pandas where that is installed."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(values)])


def coarse_rows(table: pa.Table, family: Family) -> pa.RecordBatch:
    """The coarse rows of a part, by their first step: rows of one step are found together."""
    order = np.argsort(as_numpy(table["subject"]), kind="stable")
    subjects, steps, states = (as_numpy(table[key])[order] for key in ("subject", "step", "state"))
    places = np.arange(len(order))
    changed = np.append(True, subjects[1:] != subjects[:-1])
    begins = np.maximum.accumulate(np.where(changed, places, 0))
    starts = np.flatnonzero((places - begins) % BUCKET == 0)
    ends = np.append(starts[1:], len(order)) - 1
    valued = HAS_VALUE[states]
    # The worst state that has a number; without any, what the last row says.
    worst = np.maximum.reduceat(np.where(valued, states, 0), starts)
    state = np.where(np.logical_or.reduceat(valued, starts), worst, states[ends])
    columns = [steps[starts], steps[ends], subjects[starts], state.astype(np.uint8)]
    for stat in drawn(family):
        values = as_numpy(table[stat])[order].astype(np.float64)
        finite = valued & np.isfinite(values)
        values[~finite] = np.nan
        last = np.maximum(np.maximum.reduceat(np.where(finite, places, 0), starts), starts)
        lowest, highest = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        extremes = np.array([lowest, highest, values[last]]).clip(-_LARGEST, _LARGEST)
        columns += [*extremes.astype(np.float32)]
        time.sleep(YIELD)
    order = np.argsort(columns[0], kind="stable")
    return record_batch(f"coarse/{family}", [column[order] for column in columns])


@cache
def warm_up() -> None:
    """Take the memory that finishing a part needs, once, before a training is long under way."""
    data = np.zeros(30_000, row_dtype(Family.GRAD)), np.zeros(30_000, np.uint8)
    item = Item("rows/grad", 0, np.arange(30_000), data, 0, 0)
    table = pa.Table.from_batches([batch_of([item])])
    coarse_rows(table, Family.GRAD)
    parquet(table)
