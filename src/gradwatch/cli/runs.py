"""`gradwatch runs`: the runs there are, how large they are, and away with one."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gradwatch.cli.progress import share_bar
from gradwatch.errors import Exit, GradwatchError
from gradwatch.jsonio import spelled
from gradwatch.store import RunSummary, delete_run, list_runs, open_run
from gradwatch.text import plain, shortened

FORMAT = 1


@dataclass(frozen=True)
class Listed:
    """A run with what opening it told."""

    summary: RunSummary
    steps: int
    state: str


@click.command("runs")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--delete", "victim", metavar="RUN", help="Delete this run, after asking.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
def command(folder: Path, victim: str | None, yes: bool, as_json: bool) -> None:
    """List the runs in FOLDER (runs, unless told otherwise), newest first, or delete one."""
    found = list_runs(folder)
    if victim is not None:
        _delete(found, victim, yes)
        return
    with share_bar("reading runs") as tick:
        listed = []
        for number, summary in enumerate(found, start=1):
            listed.append(_looked_at(summary))
            tick(number / len(found))
    if as_json:
        click.echo(
            json.dumps(spelled({"format": FORMAT, "runs": [_as_dict(item) for item in listed]}))
        )
    elif listed:
        Console(highlight=False).print(_table(listed))
    else:
        click.echo(f"No runs in {plain(str(folder))}.", err=True)


def _looked_at(summary: RunSummary) -> Listed:
    try:
        run = open_run(summary.path)
        steps = len(run.steps)
        state = "complete" if run.info["complete"] else "open or killed"
    except GradwatchError:
        return Listed(summary, 0, "cannot be read")
    if any(event.kind == "damage" for event in run.events):
        state += ", damaged"
    return Listed(summary, steps, state)


def _delete(found: list[RunSummary], victim: str, yes: bool) -> None:
    matching = [item for item in found if victim in (item.path.name, str(item.path), item.name)]
    if len(matching) != 1:
        there = ", ".join(plain(item.path.name) for item in found) or "none"
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


def _table(listed: list[Listed]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("run", "begun", "steps", "size", "ranks", "attempts", "state"):
        right = title in ("steps", "size", "ranks", "attempts")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for item in listed:
        summary = item.summary
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(_clamped(summary.created)))
        table.add_row(
            shortened(summary.path.name, 28),
            begun if summary.created else "?",
            str(item.steps),
            _size(summary.bytes),
            str(summary.ranks),
            str(summary.attempts),
            item.state,
        )
    return table


def _as_dict(item: Listed) -> dict[str, object]:
    summary = item.summary
    return {
        "path": str(summary.path),
        "name": summary.name,
        "created": summary.created,
        "bytes": summary.bytes,
        "ranks": summary.ranks,
        "attempts": summary.attempts,
        "steps": item.steps,
        "state": item.state,
    }


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
