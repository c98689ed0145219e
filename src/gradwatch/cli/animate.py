"""`gradwatch animate`: a moving picture of the gradient's flow."""

from pathlib import Path

import click

from gradwatch.cli.help import examples
from gradwatch.cli.places import run_argument
from gradwatch.cli.progress import share_bar, waiting
from gradwatch.files import refuse_taken
from gradwatch.store import open_run
from gradwatch.store.places import Place
from gradwatch.text import plain
from gradwatch.views.animation import FORMATS, AnimationOptions, animate
from gradwatch.views.colours import HELP, Scheme
from gradwatch.views.model import diagnosed


@click.command(
    "animate",
    short_help="Draw the gradient's flow as a moving picture.",
    epilog=examples("gradwatch animate", "gradwatch animate my-run -o flow.html --frames 100"),
)
@run_argument
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
    metavar="NAME",
    default=Scheme.VIRIDIS.value,
    show_default=True,
    help=HELP,
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def command(run: Place, output: Path, frames: int, fps: float, colours: str, force: bool) -> None:
    """Show the flow of the gradient through the layers as a moving picture."""
    options = AnimationOptions(frames, fps, Scheme.named(colours))
    refuse_taken(output, force)
    with waiting("reading the run"):
        opened = open_run(run)
        diagnosis = diagnosed(opened)
    with share_bar("drawing") as tick:
        size = animate(opened, diagnosis, output, options, force=force, tick=tick)
    click.echo(f"Wrote {plain(str(output))} ({size / 1e6:.2f} MB).", err=True)
