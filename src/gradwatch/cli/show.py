"""`gradwatch show`: a run on the terminal."""

import os
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Console, Group
from rich.live import Live

from gradwatch.cli.help import examples
from gradwatch.cli.places import run_argument
from gradwatch.cli.progress import waiting
from gradwatch.run import Run
from gradwatch.store import open_run
from gradwatch.store.places import Place
from gradwatch.views.console import console, terminal_width
from gradwatch.views.model import ViewModel, build, diagnosed, to_json
from gradwatch.views.model.titles import shown
from gradwatch.views.terminal import ranks_table, screen, signals_table

SECONDS = 1.0
"""Between two looks at a growing run."""


@click.command(
    "show",
    short_help="Show a run on the terminal: health, findings, curves, map.",
    epilog=examples("gradwatch show", "gradwatch show my-run --stat update_ratio --last 200"),
)
@run_argument
@click.option(
    "--layers", metavar="PATTERN", help="Only layers that contain this, or match h.*.attn."
)
@click.option("--stat", metavar="NAME", help="The statistic of the map, such as update_ratio.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N steps.")
@click.option("--signals", is_flag=True, help="List what was recorded, and how often.")
@click.option("--ranks", is_flag=True, help="What differs between ranks: loss, inputs, step time.")
@click.option("--follow", is_flag=True, help="Keep looking while the run grows; Ctrl-C ends it.")
@click.option("--json", "as_json", is_flag=True, help="The view model as JSON.")
def command(
    run: Place,
    layers: str | None,
    stat: str | None,
    last: int | None,
    signals: bool,
    ranks: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Show a run: health, findings, curves, and the map of layers over steps."""
    if stat is not None:
        shown(stat)  # refuses a wrong name before any work is done
    screen_of, width = console(), terminal_width()
    if follow and not (as_json or signals or ranks):
        _follow(screen_of, run, stat, layers, last)
        return
    with waiting("reading the run"):
        opened = open_run(run)
        columns = 240 if as_json else 1 if signals or ranks else 4 * width
        model = None if ranks and not as_json else _model(opened, stat, last, columns)
    if model is None:
        screen_of.print(ranks_table(opened))
    elif as_json:
        click.echo(to_json(model))
    elif signals:
        screen_of.print(signals_table(model))
    else:
        for line in screen(model, width, stat=stat, layers=layers):
            screen_of.print(line, soft_wrap=True)


def _model(run: Run, stat: str | None, last: int | None, columns: int) -> ViewModel:
    first = None
    if last is not None and len(run.steps):
        first = int(run.steps[-1]) - last + 1
    # A checkpoint has weights only; what comes first in this list is shown unless asked otherwise.
    wanted = [*dict.fromkeys(["grad_rms", "weight_norm", *([stat] if stat else [])])]
    return build(run, diagnosed(run), first=first, columns=columns, stats=wanted, with_paths=False)


def _follow(
    on: Console, path: Place, stat: str | None, layers: str | None, last: int | None
) -> None:
    with Live(console=on, refresh_per_second=4, transient=False) as live:
        for run in growing(path):
            width = terminal_width()
            model = _model(run, stat, last, 4 * width)
            live.update(Group(*screen(model, width, stat=stat, layers=layers)))


def growing(
    path: str | os.PathLike[str], *, wait: Callable[[float], None] = time.sleep
) -> Iterator[Run]:
    """The run now and each time it has grown, until its recorder says that it is complete."""
    shown: tuple[int, int] | None = None
    while True:
        run = open_run(path)
        size = (len(run.steps), len(run.events))
        if size != shown:
            shown = size
            yield run
        if run.info.get("complete"):
            return
        wait(SECONDS)
