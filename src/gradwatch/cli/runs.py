"""`gradwatch runs`: the runs there are, how large they are, and away with one or its old rows."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gradwatch.cli.places import PlaceArgument
from gradwatch.cli.progress import share_bar
from gradwatch.errors import Exit, GradwatchError
from gradwatch.jsonio import spelled
from gradwatch.store import (
    Retention,
    RunSummary,
    delete_run,
    list_runs,
    open_run,
    prunable,
    retention,
)
from gradwatch.store import prune as prune_files
from gradwatch.store.places import Place
from gradwatch.text import plain, shortened

FORMAT = 1


@click.command("runs")
@click.argument("folder", type=PlaceArgument(), default="runs")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--delete", "victim", metavar="RUN", help="Delete this run, after asking.")
@click.option(
    "--prune",
    is_flag=True,
    help="Remove the oldest rows of finished runs (all, or those named), after asking; "
    "rollups stand for them.",
)
@click.option("--keep", metavar="SIZE|AGE", help="With --prune: what stays, such as 1GB or 7d.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
def command(
    folder: Place,
    names: tuple[str, ...],
    victim: str | None,
    prune: bool,
    keep: str | None,
    yes: bool,
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
        _delete(_named(summaries, victim), yes)
        return
    if kept is not None:
        named = {item.path: item for item in (_named(summaries, name) for name in names)}
        _prune(list(named.values()) or summaries, kept, yes)
        return
    with share_bar("reading runs") as tick:
        listed = []
        for number, summary in enumerate(summaries, start=1):
            listed.append(_described(summary))
            tick(number / len(summaries))
    if as_json:
        click.echo(json.dumps(spelled({"format": FORMAT, "runs": listed})))
    elif listed:
        Console(highlight=False).print(_table(listed))
    else:
        click.echo(f"No runs in {plain(str(folder))}.", err=True)


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


def _described(summary: RunSummary) -> dict[str, Any]:
    """One run of the list: its summary, and its steps and state, which need opening it."""
    steps, state = 0, "cannot be read"
    with suppress(GradwatchError):
        run = open_run(summary.path)
        steps = len(run.steps)
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
    }


def _named(summaries: list[RunSummary], name: str) -> RunSummary:
    """The one run of this name, whole as it is."""
    matching = [item for item in summaries if name in (item.path.name, str(item.path), item.name)]
    if len(matching) != 1:
        there = ", ".join(plain(item.path.name) for item in summaries) or "none"
        raise GradwatchError(
            f"Expected the name of one run, got {plain(name)!r}, which is "
            f"{'the name of several' if matching else 'no run'}; there are: {there}.",
            Exit.USAGE,
        )
    return matching[0]


def _delete(item: RunSummary, yes: bool) -> None:
    question = f"Delete {plain(str(item.path))} ({_size(item.bytes)})? It cannot be undone."
    if yes or click.confirm(question, err=True):
        delete_run(item.path)
        click.echo(f"Deleted {plain(str(item.path))}.", err=True)
    else:
        click.echo("Nothing was deleted.", err=True)


def _prune(summaries: list[RunSummary], keep: Retention, yes: bool) -> None:
    """List what would go, ask, and remove it."""
    table = Table(box=None, pad_edge=False)
    for title in ("run", "files", "size"):
        table.add_column(title, justify="left" if title == "run" else "right", no_wrap=True)
    found, total = [], 0
    for item in summaries:
        state = _described(item)["state"]
        if state != "complete":
            click.echo(f"{plain(item.path.name)} is left alone: {state}.", err=True)
            continue
        gone = prunable(item.path, keep)
        if gone:
            files = [file for several in gone.values() for file in several]
            size = sum(file.bytes for file in files)
            table.add_row(shortened(item.path.name, 28), str(len(files)), _size(size))
            found.append(gone)
            total += size
    if not found:
        click.echo("There is nothing to prune.", err=True)
        return
    Console(highlight=False).print(table)
    if not yes and not click.confirm(f"Remove {_size(total)}? It cannot be undone.", err=True):
        click.echo("Nothing was removed.", err=True)
        return
    for gone in found:
        prune_files(gone)
    click.echo(f"Removed {_size(total)}.", err=True)


def _table(listed: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("run", "begun", "steps", "size", "ranks", "attempts", "state"):
        right = title in ("steps", "size", "ranks", "attempts")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for run in listed:
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(_clamped(run["created"])))
        table.add_row(
            shortened(Path(run["path"]).name, 28),
            begun if run["created"] else "?",
            str(run["steps"]),
            _size(run["bytes"]),
            str(run["ranks"]),
            str(run["attempts"]),
            run["state"],
        )
    return table


def _clamped(seconds: float) -> float:
    """Within what every platform's calendar can show; the file may say anything."""
    return min(max(seconds, 0.0), 4e9) if seconds == seconds else 0.0


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
