"""`Run`, the pivot: recording ends in one; analyses, checks and views begin with one."""

from gradwatch.run.downsample import Downsampled as Downsampled
from gradwatch.run.given import as_array as as_array
from gradwatch.run.given import choice as choice
from gradwatch.run.given import number as number
from gradwatch.run.given import whole_number as whole_number
from gradwatch.run.run import Run as Run
from gradwatch.run.run import as_run as as_run
from gradwatch.run.source import MemorySource as MemorySource
from gradwatch.run.subject import Event as Event
from gradwatch.run.subject import EventKind as EventKind
from gradwatch.run.subject import Histogram as Histogram
from gradwatch.run.subject import HistogramTable as HistogramTable
from gradwatch.run.subject import Placement as Placement
from gradwatch.run.subject import Subject as Subject
from gradwatch.run.subject import block_of as block_of
