"""Tables that fit their terminal: headings and numbers stay whole, names are cut from the left."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from gradwatch.text import plain, shortened

LEAST_PROSE = 20
"""Columns that sentences need."""


def fitted(name: str, cells: int) -> str:
    """A name in at most so many cells of the terminal, where wide characters take two."""
    name = plain(name)[-cells - 1 :]  # no more of it can be shown, however long it is
    short = shortened(name, cells)
    while cell_len(short) > cells:
        short = shortened(name, len(short) - 1)
    return short


@dataclass(frozen=True, slots=True)
class FittedTable:
    """Rows under headings, laid out for the width they are printed at."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    names: int = 1
    """So many columns, the first ones, hold names: they share what the others leave."""
    words: Collection[str] = ()
    """Columns that begin at the left; the others are numbers, which end at the right."""
    prose: str = ""
    """The column whose text may take several lines."""
    spare: Sequence[str] = ()
    """Columns to leave out where there is too little room, the first one first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        yield self._drawn(options.max_width)

    def _drawn(self, width: int) -> Table:
        everything = range(len(self.titles))
        full = [self._full(place) for place in everything]
        least = [self._least(place, full[place], width) for place in everything]
        places = [p for p in everything if any(_text(row[p]) for row in self.rows)]
        spare = [p for p in map(self.titles.index, self.spare) if p in places]
        while sum(least[p] + 1 for p in places) > width + 1 and spare:
            places.remove(spare.pop(0))
        whole = sum(least[p] if self._is_prose(p) else full[p] for p in places)
        gap = 2 if whole + 2 * (len(places) - 1) <= width else 1
        rest = width - sum(least[p] + gap for p in places) + gap
        given = self._shared(rest, places, full, least)
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
        for place in places:
            title, prose = self.titles[place], self._is_prose(place)
            left = place < self.names or prose or title in self.words
            table.add_column(
                Text(title),
                justify="left" if left else "right",
                no_wrap=not prose,
                overflow="fold" if prose else "ellipsis",
                max_width=given[place],
            )
        for row in self.rows:
            table.add_row(*(self._cell(row, place, given[place]) for place in places))
        return table

    def _is_prose(self, place: int) -> bool:
        return bool(self.prose) and self.titles[place] == self.prose

    def _full(self, place: int) -> int:
        """Cells of the heading or of the longest entry."""
        entries = [self.titles[place], *(row[place] for row in self.rows)]
        return max(cell_len(_text(entry)) for entry in entries)

    def _least(self, place: int, full: int, width: int) -> int:
        """Cells without which a column says too little: whole numbers, names told apart."""
        title = cell_len(self.titles[place])
        if self._is_prose(place):
            return min(full, max(title, LEAST_PROSE))
        if place >= self.names:
            return full
        names = {_text(row[place]) for row in self.rows}
        ends = (cell_len(".".join(name.rsplit(".", 2)[-2:])) + 1 for name in names)
        least, most = max(title, *ends, 0), min(full, width // (2 * self.names))
        clear = (n for n in range(least, most) if len({fitted(x, n) for x in names}) == len(names))
        return max(title, next(clear, most))

    def _shared(
        self, rest: int, places: Sequence[int], full: Sequence[int], least: Sequence[int]
    ) -> dict[int, int]:
        """Cells for each column: what is left over goes to the names, then to the sentences."""
        given = {place: least[place] for place in places}
        names = sorted((p for p in places if p < self.names), key=lambda p: full[p] - least[p])
        for place in names if rest < 0 else ():  # nothing left to spare: the names give way
            less = max(given[place] + rest, cell_len(self.titles[place]))
            rest += given[place] - less
            given[place] = less
        flexible = [*names, *(p for p in places if self._is_prose(p))]
        for number, place in enumerate(flexible):
            others = max(len(names) - number, 1)
            more = max(0, min(full[place] - least[place], rest // others))
            given[place] += more
            rest -= more
        return given

    def _cell(self, row: Sequence[str | Text], place: int, cells: int) -> Text:
        entry = row[place]
        if isinstance(entry, Text):
            return entry
        return Text(fitted(entry, cells) if place < self.names else plain(entry))


def _text(entry: str | Text) -> str:
    return entry.plain if isinstance(entry, Text) else plain(entry)
