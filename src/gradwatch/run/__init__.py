"""`Run`, the pivot: recording ends in one; analyses, checks and views begin with one."""

from gradwatch.run.downsample import Downsampled, Window
from gradwatch.run.given import as_array, choice, number, whole_number
from gradwatch.run.run import Run, as_run
from gradwatch.run.source import Loaded, MemorySource, Source
from gradwatch.run.subject import (
    Event,
    EventKind,
    Histogram,
    HistogramTable,
    Placement,
    Subject,
    block_of,
)

__all__ = [
    "Downsampled",
    "Event",
    "EventKind",
    "Histogram",
    "HistogramTable",
    "Loaded",
    "MemorySource",
    "Placement",
    "Run",
    "Source",
    "Subject",
    "Window",
    "as_array",
    "as_run",
    "block_of",
    "choice",
    "number",
    "whole_number",
]
