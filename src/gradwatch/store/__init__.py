"""The run folder: append-only, checksummed, readable while it grows (docs/format.md)."""

from gradwatch.store.pruning import prunable, prune
from gradwatch.store.reader import Follower, follow, open_run
from gradwatch.store.retention import Retention, retention
from gradwatch.store.runs import RunSummary, delete_run, folder_name, list_runs
from gradwatch.store.writer import Writer

__all__ = [
    "Follower",
    "Retention",
    "RunSummary",
    "Writer",
    "delete_run",
    "folder_name",
    "follow",
    "list_runs",
    "open_run",
    "prunable",
    "prune",
    "retention",
]
