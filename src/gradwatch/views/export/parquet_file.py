"""Parquet, where pyarrow is installed: the long table of the CSV, with exact counts beside."""

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run
from gradwatch.stats import Stat, State
from gradwatch.views.export.cells import Cells, Tick, all_cells

_WORDS = [state.name.lower() for state in sorted(State)]
_VALUED = np.array([state.has_value for state in sorted(State)])


def write_parquet(run: Run, stats: Sequence[Stat], file: BinaryIO, tick: Tick) -> None:
    """One row group per statistic."""
    arrow, parquet = _pyarrow()
    schema = arrow.schema(
        [
            ("step", arrow.int64()),
            ("kind", arrow.string()),
            ("name", arrow.string()),
            ("statistic", arrow.string()),
            ("value", arrow.float64()),
            ("whole", arrow.uint64()),
            ("state", arrow.string()),
        ]
    )
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for cells in all_cells(run, stats, tick):
            if len(cells.steps):
                writer.write_table(_table(arrow, schema, cells))


def _table(arrow: Any, schema: Any, cells: Cells) -> Any:
    count = len(cells.steps)
    without = ~_VALUED[cells.states]
    exact = cells.values.dtype == np.uint64
    whole = arrow.array(cells.values, mask=without) if exact else arrow.nulls(count, arrow.uint64())
    columns = [
        arrow.array(cells.steps),
        arrow.array([cells.kind] * count),
        _repeated(arrow, cells.subjects, cells.columns),
        arrow.array([cells.name] * count),
        arrow.array(cells.values.astype(np.float64), mask=without),
        whole,
        _repeated(arrow, _WORDS, cells.states),
    ]
    return arrow.Table.from_arrays(columns, schema=schema)


def _repeated(arrow: Any, words: Sequence[str], index: Any) -> Any:
    clean = [word.encode("utf-8", "backslashreplace").decode() for word in words]
    return arrow.array(clean, arrow.string()).take(arrow.array(index.astype(np.int64)))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise GradwatchError(
            "Parquet needs pyarrow, which is not installed. "
            "Install it (`pip install gradwatch[parquet]`), or export to .csv or .json.",
            Exit.USAGE,
        ) from None
    return pyarrow, pyarrow.parquet
