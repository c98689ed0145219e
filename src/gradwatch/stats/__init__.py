"""What is recorded: the names of all statistics, their kinds, families and units."""

from gradwatch.stats.catalogue import (
    ENTRIES,
    HAS_VALUE,
    SKETCH_WIDTH,
    Cadence,
    Entry,
    Family,
    Kind,
    Stat,
    State,
    entry,
    family_stats,
    row_dtype,
)

__all__ = [
    "ENTRIES",
    "HAS_VALUE",
    "SKETCH_WIDTH",
    "Cadence",
    "Entry",
    "Family",
    "Kind",
    "Stat",
    "State",
    "entry",
    "family_stats",
    "row_dtype",
]
