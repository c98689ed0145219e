"""`gradwatch report`: one HTML file that says and shows everything."""

from pathlib import Path

import click

from gradwatch.cli.help import examples
from gradwatch.cli.places import run_argument
from gradwatch.cli.progress import waiting
from gradwatch.files import refuse_taken, write_whole
from gradwatch.store import open_run
from gradwatch.store.places import Place
from gradwatch.text import plain
from gradwatch.views.colours import HELP, Scheme
from gradwatch.views.model import build, diagnosed
from gradwatch.views.page import report


@click.command(
    "report",
    short_help="Write a run's report: one HTML file, opens from disk.",
    epilog=examples("gradwatch report", "gradwatch report my-run -o my-run.html --force"),
)
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option("--colours", metavar="NAME", default=Scheme.VIRIDIS.value, help=HELP)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def command(run: Place, output: Path, colours: str, force: bool) -> None:
    """Write a run's report: one HTML file, no network needed, opens from disk."""
    scheme = Scheme.named(colours)
    refuse_taken(output, force)
    with waiting("reading the run"):
        opened = open_run(run)
        model = build(opened, diagnosed(opened))
        text = report(model, scheme).encode()
    size = write_whole(output, lambda file: file.write(text), force=force)
    click.echo(
        f"{model.health['state']}: {plain(model.health['line'])}\n"
        f"Wrote {plain(str(output))} ({size / 1e6:.2f} MB); open it in a browser.",
        err=True,
    )
