"""The run folder: Arrow streams and Parquet, readable while it grows (docs/format.md)."""

from gradwatch.store.reader import open_run
from gradwatch.store.retention import Retention
from gradwatch.store.runs import list_runs
from gradwatch.store.writer import Writer

__all__ = ["Retention", "Writer", "list_runs", "open_run"]
