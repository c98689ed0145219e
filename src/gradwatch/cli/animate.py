"""`gradwatch animate`: a moving picture of the gradient's flow."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from gradwatch.files import refuse_taken
from gradwatch.store import open_run
from gradwatch.text import plain
from gradwatch.views.animation import FORMATS, Scheme, Wanted, animate
from gradwatch.views.model import diagnosed


@click.command("animate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("flow.gif"),
    show_default=True,
    help=f"The file to write; its ending chooses the kind: {', '.join(FORMATS)}.",
)
@click.option("--frames", type=click.IntRange(2, 2000), default=300, show_default=True)
@click.option("--fps", type=click.FloatRange(1, 60), default=15.0, show_default=True)
@click.option(
    "--colours",
    type=click.Choice([scheme.value for scheme in Scheme]),
    default=Scheme.VIRIDIS.value,
    show_default=True,
    help="cividis suits colour-blind eyes, contrast projectors, mono paper.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def command(run: Path, output: Path, frames: int, fps: float, colours: str, force: bool) -> None:
    """Show the flow of the gradient through the layers as a moving picture."""
    refuse_taken(output, force)
    opened = open_run(run)
    wanted = Wanted(frames, fps, Scheme(colours))
    size = animate(opened, diagnosed(opened), output, wanted, force=force, progress=_with_bar)
    click.echo(f"Wrote {plain(str(output))} ({size / 1e6:.2f} MB).", err=True)


def _with_bar(items: Iterable[Any]) -> Iterator[Any]:
    """A progress bar when a person is watching."""
    if not sys.stderr.isatty():
        yield from items
        return
    with click.progressbar(items, label="drawing", file=sys.stderr) as bar:
        yield from bar
