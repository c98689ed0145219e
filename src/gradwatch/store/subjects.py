"""The subjects of a writer: a table that ranks share, and placements, which are a rank's own.

A thousand ranks with a thousand tensors each would be a million objects. Their tables are nearly
always the same but for the placements, so a table is read and made once.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gradwatch.run.subject import Placement, Subject
from gradwatch.stats import Kind
from gradwatch.store.format import from_json
from gradwatch.store.parquet import Footer

Placements = Sequence[Placement | None]

COLUMNS = ("subject", "kind", "name", "layer", "details")
_MOST_SUBJECTS = 1 << 18
"""Of all tables that are held for other ranks; a server opens many runs."""
_LONGEST_PLACEMENT = 1 << 12
_tables: dict[Hashable, "SubjectTable"] = {}


class SubjectTable:
    """Subjects by id, in the order of the ids, without their placements."""

    def __init__(self, by_id: Mapping[int, Subject]) -> None:
        self.by_id = dict(sorted(by_id.items()))
        subjects = self.by_id.values()
        self.names = {
            kind: tuple(dict.fromkeys(s.name for s in subjects if s.kind is kind)) for kind in Kind
        }
        """Of each kind, in the order of the columns of its series."""
        self.numbers: dict[tuple[Kind, str], list[int]] = {}
        """The ids that a subject has had."""
        for number, subject in self.by_id.items():
            self.numbers.setdefault((subject.kind, subject.name), []).append(number)
        self.columns = {
            kind: {name: column for column, name in enumerate(names)}
            for kind, names in self.names.items()
        }


def described(run: str, footer: Footer, columns: Callable[[], list[Any]]) -> SubjectTable:
    """The table in a sealed file, whose `COLUMNS` are read if they are not known; raises where
    they make no sense."""
    # Columns of the same checksums are the same, as sure as a checksum tells what is damaged; but
    # checksums can be forged, so no run lends its subjects to another.
    places = [footer.columns[name] for name in COLUMNS]
    key = run, *((place.size, place.checksum) for place in places)
    table = _tables.get(key)
    if table is None:
        ids, *texts = columns()
        rows = zip(ids.tolist(), *texts, strict=True)
        table = SubjectTable({number: _subject(*row) for number, *row in rows})
        if list(table.by_id) != ids.tolist():
            raise ValueError("its ids are in no order")
        if sum(len(held.by_id) for held in _tables.values()) > _MOST_SUBJECTS:
            _tables.clear()
        if all(place.checksum is not None for place in places):
            _tables[key] = table
    return table


def _subject(kind: str, name: str, layer: str, details: str) -> Subject:
    own = {"kind": kind, "name": name, "layer": layer, "placement": None}
    return Subject.from_dict({**from_json(details.encode()), **own})


@lru_cache(maxsize=1 << 12)
def placed(text: str) -> Placement | None:
    """A placement as a sealed file holds it; none is empty."""
    if len(text) > _LONGEST_PLACEMENT:
        raise ValueError("a placement that is longer than any")
    return Placement.from_dict(from_json(text.encode())) if text else None
