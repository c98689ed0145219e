"""`gradwatch runs`: the runs there are, how large they are, and away with one or its old rows."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from gradwatch.cli.help import examples
from gradwatch.cli.places import PlaceArgument
from gradwatch.cli.progress import share_bar
from gradwatch.diagnosis import counted, diagnose
from gradwatch.errors import Exit, GradwatchError
from gradwatch.store import list_runs, open_run
from gradwatch.store.places import Place
from gradwatch.store.retention import Retention, prunable, retention
from gradwatch.store.retention import prune as prune_files
from gradwatch.store.runs import RunSummary, delete_run
from gradwatch.text import nearest, plain, several
from gradwatch.views.console import console, print_json
from gradwatch.views.tables import FittedTable

FORMAT = 1


@click.command(
    "runs",
    short_help="List the runs there are; delete or prune some.",
    epilog=examples("gradwatch runs", "gradwatch runs --prune --keep 1GB"),
)
@click.argument("folder", type=PlaceArgument(), default="runs")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--delete", "victim", metavar="RUN", help="Delete this run, after asking.")
@click.option(
    "--prune",
    is_flag=True,
    help="Remove the oldest rows of finished runs (all, or those named), after asking; "
    "coarse rows stay.",
)
@click.option("--keep", metavar="SIZE|AGE", help="With --prune: what stays, such as 1GB or 7d.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--quick", is_flag=True, help="Do not judge the runs, which takes the longest.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
def command(
    folder: Place,
    names: tuple[str, ...],
    victim: str | None,
    prune: bool,
    keep: str | None,
    yes: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """List the runs in FOLDER (runs, unless told otherwise), newest first; delete or prune some."""
    kept = _kept(prune, keep, names, victim)
    if folder.remote and (prune or victim is not None):
        raise GradwatchError(
            f"Expected a folder of this machine to remove from, got {plain(str(folder))!r}; "
            "use the tools of the storage.",
            Exit.USAGE,
        )
    summaries = list_runs(folder)
    if victim is not None:
        below = [item for item in summaries if item.path != folder]
        _delete(_named(below, victim, folder), yes)
        return
    if kept is not None:
        named = {item.path: item for item in (_named(summaries, name, folder) for name in names)}
        _prune(list(named.values()) or summaries, kept, yes)
        return
    document = as_document(summaries, judged=not quick)
    if as_json:
        print_json(document)
    elif document["runs"]:
        console().print(_table(document["runs"]))
    else:
        click.echo(f"No runs in {plain(str(folder))}.", err=True)


def as_document(summaries: list[RunSummary], *, judged: bool = True) -> dict[str, Any]:
    """What `--json` says of these runs; the verdict is null where they are not judged."""
    with share_bar("reading runs") as tick:
        listed = []
        for number, summary in enumerate(summaries, start=1):
            listed.append(_described(summary, judged=judged))
            tick(number / len(summaries))
    return {"format": FORMAT, "runs": listed}


def _kept(
    prune: bool, keep: str | None, names: tuple[str, ...], victim: str | None
) -> Retention | None:
    """What `--prune` keeps; None where nothing is to be pruned."""
    if prune and victim is not None:
        raise GradwatchError("Expected --delete or --prune, got both.", Exit.USAGE)
    if prune is (keep is None):
        lone = "--prune" if prune else "--keep"
        raise GradwatchError(
            f"Expected --prune together with --keep, got {lone} alone; "
            "say what stays: --prune --keep 1GB.",
            Exit.USAGE,
        )
    if names and not prune:
        raise GradwatchError(
            f"Expected one folder of runs, got {plain(names[0])!r} behind it; "
            "names of runs go with --prune.",
            Exit.USAGE,
        )
    if keep == "all":
        raise GradwatchError("Expected a size or an age, got --keep all.", Exit.USAGE)
    return None if keep is None else retention(keep)


def _described(summary: RunSummary, *, judged: bool) -> dict[str, Any]:
    """One run of the list: its summary, and steps, state and verdict, which need opening it."""
    steps, state, diagnosis = 0, "cannot be read", None
    with suppress(Exception):  # a fault in reading one run must not hide the others
        run = open_run(summary.path)
        diagnosis = diagnose(run) if judged else None
        steps = run.step_count
        state = "complete" if run.info["complete"] else "open or killed"
        if any(event.kind == "damage" for event in run.events):
            state = "damaged"
    return {
        "path": str(summary.path),
        "name": summary.name,
        "created": summary.created,
        "bytes": summary.bytes,
        "ranks": summary.ranks,
        "attempts": summary.attempts,
        "steps": steps,
        "state": state,
        "verdict": diagnosis.verdict if diagnosis else None,
        "counts": diagnosis.counts if diagnosis else None,
    }


def _named(summaries: list[RunSummary], name: str, folder: Place) -> RunSummary:
    """The run whose folder has this name, whole as it is: who deletes never guesses."""
    for item in summaries:
        if item.path.name == name:
            return item
    there = [plain(item.path.name) for item in summaries]
    raise GradwatchError(
        f"Expected the whole name of a run's folder, got {plain(name)!r}; there is "
        f"{nearest(name, there) if there else f'none below {plain(str(folder))!r}'}.",
        Exit.USAGE,
    )


def _delete(item: RunSummary, yes: bool) -> None:
    question = f"Delete {plain(str(item.path))} ({_size(item.bytes)})? It cannot be undone."
    if yes or click.confirm(question, err=True):
        left = delete_run(item.path)
        rest = f", except what is not of gradwatch: {several(left, 4)}" if left else ""
        click.echo(plain(f"Deleted {item.path}{rest}."), err=True)
    else:
        click.echo("Nothing was deleted.", err=True)


def _prune(summaries: list[RunSummary], keep: Retention, yes: bool) -> None:
    """List what would go, ask, and remove it."""
    rows, found, total = [], [], 0
    for item in summaries:
        state = _described(item, judged=False)["state"]
        if state != "complete":
            click.echo(f"{plain(item.path.name)} is left alone: {state}.", err=True)
            continue
        gone = prunable(item.path, keep)
        if gone:
            parts = [part for removed in gone.values() for _, part in removed]
            total += (size := sum(part.bytes for part in parts))
            rows.append((item.path.name, str(len(parts)), _size(size)))
            found.append(gone)
    if not found:
        click.echo("There is nothing to prune.", err=True)
        return
    console().print(FittedTable(("run", "files", "size"), rows))
    if not yes and not click.confirm(f"Remove {_size(total)}? It cannot be undone.", err=True):
        click.echo("Nothing was removed.", err=True)
        return
    for gone in found:
        prune_files(gone)
    click.echo(f"Removed {_size(total)}.", err=True)


def _table(listed: list[dict[str, Any]]) -> FittedTable:
    rows = []
    for run in listed:
        created = min(max(0.0, run["created"]), 1e11)  # what was written may be no time
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(created))
        cells = (
            Path(run["path"]).name,
            begun if created else "?",
            str(run["steps"]),
            _size(run["bytes"]),
            str(run["ranks"]),
            str(run["attempts"]),
            run["state"],
            _judged(run),
        )
        rows.append(cells)
    return FittedTable(
        ("run", "begun", "steps", "size", "ranks", "attempts", "state", "verdict"),
        rows,
        words=("begun", "state", "verdict"),
        spare=("attempts", "ranks", "begun", "size"),
    )


def _judged(run: dict[str, Any]) -> str:
    """The verdict, and how much was found where something was."""
    if run["verdict"] in (None, "healthy"):
        return run["verdict"] or "–"
    return f"{run['verdict']}, {counted(**run['counts'])}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
