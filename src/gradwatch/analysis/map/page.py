"""The map as a page: `docs/from-trustformers.md`."""

from collections import Counter
from collections.abc import Iterable, Sequence

from gradwatch.analysis.map.changes import CHANGES
from gradwatch.analysis.map.levels import LEVELS
from gradwatch.analysis.map.outside import OUTSIDE
from gradwatch.analysis.map.rows import Mark, System

HEAD = """# Coming from trustformers-debug

<!-- `python -m gradwatch.analysis.map docs/from-trustformers.md` makes it; a test keeps it so. -->

The analyses of gradwatch answer what the gradient and weight debugger of trustformers-debug 0.1.1
answers, under the same field names. They take `rules="gradwatch"` (the default, right) or
`rules="original"` (what the original program itself would say, formula by formula, in insertion
order; it raises `GradwatchError` where the original panics).

In the tables `*` stands for the name of a layer or a place in a list. What could not be measured is
None, and `result.missing[field]` says why.
"""


def page(systems: Sequence[System]) -> str:
    parts = [HEAD, _marks(systems), _changes()]
    parts += [_system(system) for system in systems]
    parts += [_levels(), _outside()]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _marks(systems: Sequence[System]) -> str:
    rows = [row for system in systems for row in system.rows]
    counted = Counter(row.mark for row in rows)
    nothing = sum(row.ours is None for row in rows)
    table = _table(
        ["mark", "the original's value is", "fields"],
        ([mark.value, mark.text, str(counted[mark])] for mark in Mark),
    )
    count = f"Of these {len(rows)} fields, {nothing} have no field of ours; their row says why."
    return f"## Marks\n\n{table}\n{count}\n"


def _changes() -> str:
    rows = ([change.given, change.asked, *change.answers()] for change in CHANGES)
    return "## What the corrections change\n\n" + _table(
        ["given", "asked", "original", "gradwatch"], rows
    )


def _system(system: System) -> str:
    rows = []
    for row in system.rows:
        ours = "same" if row.ours == row.field else f"`{row.ours}`" if row.ours else "none"
        rows.append([f"`{row.field}`", row.mark.value, ours, row.note])
    return (
        f"## {system.title}\n\n"
        f"Ours: `{system.door}`. The original's rules: `{system.original}`.\n\n"
        + _table(["field of the original", "mark", "ours", "note"], rows)
    )


def _levels() -> str:
    rows = []
    for item in LEVELS:
        there = [f"{level}†" if level in item.unreachable else level for level in item.declared]
        gone = "; ".join(f"{level} ({why})" for level, why in item.gone.items())
        rows.append([item.name, ", ".join(there), gone or "none", ", ".join(item.added) or "none"])
    return "## Levels\n\n† is declared by the original and never produced by it.\n\n" + _table(
        ["enumeration", "levels of the original", "gone", "new"], rows
    )


def _outside() -> str:
    return "## The rest\n\n" + _table(["part of the original", "here"], OUTSIDE)
