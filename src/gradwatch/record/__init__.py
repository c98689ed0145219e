"""Watching a training: the heart-beat, the sentinel, the rows."""

from gradwatch.record.disabled import Disabled
from gradwatch.record.instrument import Batch, Instrument, Monitor, Sink
from gradwatch.record.options import ALL, Record
from gradwatch.record.watcher import Watcher
from gradwatch.record.watching import watch

__all__ = [
    "ALL",
    "Batch",
    "Disabled",
    "Instrument",
    "Monitor",
    "Record",
    "Sink",
    "Watcher",
    "watch",
]
