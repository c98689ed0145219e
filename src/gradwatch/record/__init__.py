"""Watching a training: the heart-beat, the sentinel, the rows."""

from gradwatch.record.disabled import Disabled
from gradwatch.record.instrument import Batch, Monitor, Sink
from gradwatch.record.options import ALL, Record
from gradwatch.record.signal import Signal
from gradwatch.record.watcher import Watcher
from gradwatch.record.watching import watch

__all__ = [
    "ALL",
    "Batch",
    "Disabled",
    "Monitor",
    "Record",
    "Signal",
    "Sink",
    "Watcher",
    "watch",
]
