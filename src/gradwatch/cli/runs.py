"""`gradwatch runs`: the runs there are, how large they are, and away with one."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gradwatch.cli.progress import share_bar
from gradwatch.errors import Exit, GradwatchError
from gradwatch.jsonio import spelled
from gradwatch.store import RunSummary, delete_run, list_runs, open_run
from gradwatch.text import plain, shortened

FORMAT = 1


@click.command("runs")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--delete", "victim", metavar="RUN", help="Delete this run, after asking.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
def command(folder: Path, victim: str | None, yes: bool, as_json: bool) -> None:
    """List the runs in FOLDER (runs, unless told otherwise), newest first, or delete one."""
    summaries = list_runs(folder)
    if victim is not None:
        _delete(summaries, victim, yes)
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


def _described(summary: RunSummary) -> dict[str, Any]:
    """One run of the list: its summary, and its steps and state, which need opening it."""
    steps, state = 0, "cannot be read"
    with suppress(GradwatchError):
        run = open_run(summary.path)
        steps = len(run.steps)
        state = "complete" if run.info["complete"] else "open or killed"
        if any(event.kind == "damage" for event in run.events):
            state += ", damaged"
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


def _delete(summaries: list[RunSummary], victim: str, yes: bool) -> None:
    matching = [item for item in summaries if victim in (item.path.name, str(item.path), item.name)]
    if len(matching) != 1:
        there = ", ".join(plain(item.path.name) for item in summaries) or "none"
        raise GradwatchError(
            f"Expected the name of one run, got {plain(victim)!r}, which is "
            f"{'the name of several' if matching else 'no run'}; there are: {there}.",
            Exit.USAGE,
        )
    (item,) = matching
    question = f"Delete {plain(str(item.path))} ({_size(item.bytes)})? It cannot be undone."
    if yes or click.confirm(question, err=True):
        delete_run(item.path)
        click.echo(f"Deleted {plain(str(item.path))}.", err=True)
    else:
        click.echo("Nothing was deleted.", err=True)


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
