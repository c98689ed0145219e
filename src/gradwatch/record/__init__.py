"""Watching a training: hooks around its steps, statistics of its tensors, rows for the store."""

from gradwatch.record.options import ALL, Record
from gradwatch.record.recorder import StepMonitor, StepRows
from gradwatch.record.watch import watch
from gradwatch.record.watcher import Disabled, Watcher

__all__ = ["ALL", "Disabled", "Record", "StepMonitor", "StepRows", "Watcher", "watch"]
