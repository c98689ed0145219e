"""What a sealed file holds: rows in grids, and columns of a kind that their names tell.

A file may come from anywhere: how many, how long, of which type are claims, and what cannot be is
refused before anything of a claimed size is made.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Stat
from gradwatch.store.manifest import as_stretches, numbers_of, stretches

ROWS_LIMIT = 1 << 22
VALUES_LIMIT = 1 << 24
"""Values in the lists of a column, or steps in the grids of a file."""
UNPACKED_LIMIT = 1 << 27
"""Bytes of columns unpacked together. Files of ours stay far below each limit."""
KEYS = ("step", "subject", "state", "rank", "attempt", "first_step", "last_step", "rows")
"""Columns of whole numbers that every row has."""
_LISTS = {"negative", "positive", *(str(stat) for stat in Stat if stat.width > 1)}
_LETTERS = (
    dict.fromkeys(("name", "kind", "layer", "details", "placement", "text", "data"), "t")
    | dict.fromkeys((*KEYS, "first_exponent"), "iu")
    | dict.fromkeys(("negative", "positive", "zeros", "nan", "positive_inf", "negative_inf"), "u")
    | dict.fromkeys(("value", "wall"), "f")
    | {str(stat): np.dtype(stat.dtype).kind for stat in Stat}
)
"""First letters of the kinds that a column may be of; columns not named are numbers."""


class Unreadable(Exception):
    """A sealed file that is not what the manifest says, or cannot be decoded."""


@dataclass(frozen=True)
class Grid:
    """Rows of the same subjects: step after step, and in a step subject after subject.

    In rollups the steps are those of all rows inside, and bucket after bucket stands for `sizes`
    of them.
    """

    steps: NDArray[np.int64]
    ids: NDArray[np.uint32]
    sizes: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Steps or buckets, and subjects."""
        return len(self.steps if self.sizes is None else self.sizes), len(self.ids)

    def to_json(self) -> list[Any]:
        """As the footer states it: steps, subjects and sizes as stretches."""
        sizes = () if self.sizes is None else (as_stretches(self.sizes),)
        return [as_stretches(self.steps), as_stretches(self.ids), *sizes]


def grids_of(facts: bytes, rows: int) -> tuple[Grid, ...]:
    """The grids that a footer states; ValueError where they cannot be those of its rows."""
    try:
        stated = [[stretches(part) for part in grid] for grid in json.loads(facts)["grids"]]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:80]}") from None
    lengths = [[sum(count for _, _, count in part) for part in grid] for grid in stated]
    if any(len(parts) not in (2, 3) for parts in lengths):
        raise ValueError("grids of another make")
    if sum(map(sum, lengths)) > VALUES_LIMIT:
        raise ValueError("more steps than any file has")
    # Steps, or in rollups buckets, times subjects.
    if stated and sum((parts[2:] or parts)[0] * parts[1] for parts in lengths) != rows:
        raise ValueError("they are of other rows than the file has")
    return tuple(_grid(*map(numbers_of, parts)) for parts in stated)


def _grid(
    steps: NDArray[np.int64], ids: NDArray[np.int64], sizes: NDArray[np.int64] | None = None
) -> Grid:
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= 1 << 32:
        raise ValueError("subjects that are no 32-bit numbers")
    if sizes is not None and (sizes.min(initial=1) < 1 or sizes.sum() != len(steps)):
        raise ValueError("buckets of other rows than there are")
    return Grid(steps, ids.astype(np.uint32), sizes)


class Lists(NamedTuple):
    """A column of lists: row i has values[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]


@dataclass(frozen=True)
class Words(Sequence[str]):
    """A column of few distinct texts: row i has words[numbers[i]], made when it is read."""

    numbers: NDArray[Any]
    words: list[str]

    @property
    def letters(self) -> int:
        """Of all rows together."""
        return int(np.fromiter(map(len, self.words), np.int64)[self.numbers].sum())

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: Any) -> Any:
        return self.words[self.numbers[row]]

    def __iter__(self) -> Iterator[str]:
        return map(self.words.__getitem__, self.numbers.tolist())


Column = NDArray[Any] | Lists | Words | list[str]


class ColumnPlace(NamedTuple):
    """A column as the footer describes it."""

    name: str
    kind: str
    """The numbers' numpy type (`f8`), `text`, or "" for what files of ours do not have."""
    listed: bool
    """Whether a row has a list of them."""
    offset: int
    size: int
    unpacked: int
    values: int
    constant: int | None
    """Its only value where a whole column is one whole number."""
    checksum: int | None

    def problem(self, rows: int, event: bool = False) -> str | None:
        """Why it cannot be a column of that name and of so many rows (or events)."""
        listed = self.name in _LISTS
        # An event is about a subject by name, everything else by number.
        letters = "t" if event and self.name == "subject" else _LETTERS.get(self.name, "fiu")
        if self.kind[:1] not in tuple(letters) or self.listed != listed:
            return f"its column {self.name} has values of another type"
        most = UNPACKED_LIMIT if listed or self.kind == "text" else rows * 24 + (1 << 16)
        if self.unpacked > most or (self.values > VALUES_LIMIT if listed else self.values != rows):
            return f"its column {self.name} claims other values than its rows have"
        return None

    def nothing(self) -> Column:
        """The column of a file without rows."""
        empty = np.empty(0, "u1" if self.kind == "text" else self.kind)
        if self.listed:
            return Lists(np.zeros(1, np.int64), empty)
        return Words(np.empty(0, np.int32), []) if self.kind == "text" else empty
