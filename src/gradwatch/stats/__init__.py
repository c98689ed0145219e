"""What is recorded: the names of all statistics, their kinds, families and units."""

from gradwatch.stats.catalogue import (
    HAS_VALUE,
    Cadence,
    Family,
    Kind,
    Stat,
    State,
    family_stats,
    row_dtype,
)

__all__ = [
    "HAS_VALUE",
    "Cadence",
    "Family",
    "Kind",
    "Stat",
    "State",
    "family_stats",
    "row_dtype",
]
