"""The run folder: append-only, checksummed, readable while it grows (docs/format.md)."""

from gradwatch.store.folder import folder_name
from gradwatch.store.listing import RunSummary, delete_run, list_runs
from gradwatch.store.opening import Follower, follow, glance, open_run
from gradwatch.store.retention import Retention
from gradwatch.store.writer import Writer

__all__ = [
    "Follower",
    "Retention",
    "RunSummary",
    "Writer",
    "delete_run",
    "folder_name",
    "follow",
    "glance",
    "list_runs",
    "open_run",
]
