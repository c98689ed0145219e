"""`Run`, the pivot: recording ends in one; analyses, checks and views begin with one."""

from gradwatch.run.event import Event, EventKind
from gradwatch.run.histogram import Histogram
from gradwatch.run.memory import MemorySource
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded, Source
from gradwatch.run.subject import Placement, Subject, block_of, layer_of
from gradwatch.run.window import Bands, Window

__all__ = [
    "Bands",
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
