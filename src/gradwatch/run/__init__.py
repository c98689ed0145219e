"""`Run`, the pivot: recording ends in one; analyses, checks and views begin with one."""

from gradwatch.run.downsample import Downsampled, Window
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded, MemorySource, Source
from gradwatch.run.subject import (
    Event,
    EventKind,
    Histogram,
    Placement,
    Subject,
    block_of,
    layer_of,
)

__all__ = [
    "Downsampled",
    "Event",
    "EventKind",
    "Histogram",
    "Loaded",
    "MemorySource",
    "Placement",
    "Run",
    "Source",
    "Subject",
    "Window",
    "block_of",
    "layer_of",
]
