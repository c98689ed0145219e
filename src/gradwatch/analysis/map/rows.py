"""One row of the map: a field of the original, its mark, and where we have it or why not."""

from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """What the original's value is worth."""

    MEASURED = "M"
    FAULTY = "F"
    PLACEHOLDER = "P"

    @property
    def text(self) -> str:
        return _TEXT[self]


_TEXT = {
    Mark.MEASURED: "right: ours is the same",
    Mark.FAULTY: "wrong formula: ours is the right one",
    Mark.PLACEHOLDER: "a constant or stand-in: ours is a measurement",
}


@dataclass(frozen=True)
class Row:
    """`*` in a path stands for the name of a layer or the place in a list."""

    field: str
    mark: Mark
    ours: str | None
    note: str
    """What changed, or, where `ours` is None, why there is nothing."""


@dataclass(frozen=True)
class System:
    """One result of the original: what makes it there, under its own rules here, and by ours."""

    title: str
    golden: str | None
    """File of golden cases, where there is one."""
    original: str
    """Module with the original's own rules."""
    door: str
    """The call that gives our result."""
    result: str | None
    """`module:attribute` of our result class."""
    rows: tuple[Row, ...]


def parse(table: str) -> tuple[Row, ...]:
    """Lines `field | mark | ours | note`; `=` is the same path, `-` is nothing."""
    rows = []
    for line in table.strip().splitlines():
        field, mark, ours, note = (part.strip() for part in line.split("|"))
        path = field if ours == "=" else None if ours == "-" else ours
        rows.append(Row(field, Mark(mark), path, note))
    return tuple(rows)
