"""From a run and its diagnosis to the model every view is drawn from."""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from inspect import cleandoc
from typing import Any

from gradwatch.run import Run
from gradwatch.views.model import health, lines, notes, ridges, rows
from gradwatch.views.model.badness import badness
from gradwatch.views.model.columns import Columns
from gradwatch.views.model.flow import flow
from gradwatch.views.model.health import Diagnosed
from gradwatch.views.model.heat import choice, heat
from gradwatch.views.model.paths import troubles
from gradwatch.views.model.ranks import ranks

FORMAT = 1
COLUMNS = 240


def build(
    run: Run,
    diagnosis: Diagnosed | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    columns: int = COLUMNS,
    stats: Sequence[str] | None = None,
    with_paths: bool = True,
    sections: Collection[str] | None = None,
) -> dict[str, Any]:
    """What is shown of the steps `first` … `last`, as plain JSON: no NaN, no array, no object.

    `stats` names the maps; without it the usual choice is made within a budget of cells.
    The analysis of the flow is of the whole run; `with_paths=False` leaves it away. `sections`
    names the keys that are wanted; the others are neither computed nor there.
    """
    whole = notes.about(run)
    begin = whole["first_step"] if first is None else first
    end = whole["last_step"] if last is None else last
    maps, width = choice(run, stats, columns)
    grid = Columns.of(run, first, last, width)
    with_paths = with_paths and first is None and last is None
    layers = rows.layers(run)

    @cache
    def bad() -> list[float]:
        return badness(run, layers, diagnosis, grid)

    @cache
    def tables() -> dict[str, Any]:
        return rows.tables(run, layers, bad())

    made: dict[str, Callable[[], Any]] = {
        "format": lambda: FORMAT,
        "run": lambda: whole,
        "window": lambda: [begin, end],
        "health": lambda: health.health(run, diagnosis),
        "findings": lambda: health.findings(run, diagnosis, begin, end, explanations(diagnosis)),
        "timeline": lambda: health.timeline(diagnosis),
        "skipped": lambda: health.skipped(diagnosis),
        "scalars": lambda: lines.scalars(run, begin, end),
        "nonfinite_loss": lambda: notes.nonfinite_loss(run),
        "learning_rates": lambda: lines.learning_rates(run, begin, end),
        "ranks": lambda: ranks(run, diagnosis, begin, end),
        "layers": lambda: tables()["layers"],
        "tensors": lambda: tables()["tensors"],
        "heat": lambda: heat(grid, maps),
        "updates": lambda: lines.update_spread(grid),
        "flow": lambda: {**flow(run.graph, layers), **(troubles(run) if with_paths else {})},
        "ridges": lambda: ridges.ridges(run, layers, worst_of(bad())),
        "events": lambda: notes.events(run),
        "cost": lambda: notes.cost(run),
        "unseen": lambda: notes.unseen(run),
        "signals": lambda: notes.signals(run),
    }
    return {name: make() for name, make in made.items() if sections is None or name in sections}


def worst_of(bad: Sequence[float]) -> list[int]:
    """Indices of layers, worst first."""
    return sorted(range(len(bad)), key=lambda index: -bad[index])


def diagnosed(run: Run) -> Diagnosed:
    """The diagnosis of a run; imported here, since showing one does not need it."""
    from gradwatch.diagnosis import diagnose

    found: Diagnosed = diagnose(run)
    return found


def explanations(diagnosis: Diagnosed | None) -> dict[str, str]:
    """What `gradwatch explain` says about each check that found something."""
    from gradwatch.checks import CHECKS

    found = {item.check for item in diagnosis.findings} if diagnosis else set()
    return {check.NAME: cleandoc(check.__doc__ or "") for check in CHECKS if check.NAME in found}
