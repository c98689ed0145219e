"""Watching a training: hooks around its steps, statistics of its tensors, rows for the store."""

from gradwatch.record.options import ALL, Record
from gradwatch.record.rows import StepMonitor, StepRows
from gradwatch.record.signal import Signal
from gradwatch.record.watch import watch
from gradwatch.record.watcher import Disabled, Watcher

__all__ = [
    "ALL",
    "Disabled",
    "Record",
    "Signal",
    "StepMonitor",
    "StepRows",
    "Watcher",
    "watch",
]
