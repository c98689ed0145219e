"""`gradwatch export`: a run's numbers for other tools."""

from functools import partial
from pathlib import Path

import click

from gradwatch.cli.progress import share_bar
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import refuse_taken, write_whole
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.store import open_run
from gradwatch.text import plain
from gradwatch.views.export import exported, write_csv, write_json, write_parquet, write_tensorboard

FORMATS = {"csv": write_csv, "json": write_json, "parquet": write_parquet}


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; its ending says in which format.",
)
@click.option(
    "--tensorboard",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write TensorBoard event files there instead.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Whatever the ending says.")
@click.option(
    "--stat", "words", multiple=True, metavar="NAME", help="Only this statistic; may be repeated."
)
@click.option(
    "--exact-names", is_flag=True, help="CSV: leave names as they are, formulas included."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def command(
    run: Path,
    output: Path | None,
    tensorboard: Path | None,
    form: str | None,
    words: tuple[str, ...],
    exact_names: bool,
    force: bool,
) -> None:
    """Write every recorded value of a run: csv, json or parquet, by the file's ending."""
    if (output is None) == (tensorboard is None):
        raise click.UsageError("Say either -o FILE or --tensorboard DIR.")
    if tensorboard is not None:
        path = write_tensorboard(open_run(run), tensorboard)
        click.echo(f"Wrote {plain(str(path))}.", err=True)
    elif output is not None:
        _write(run, output, form, words, exact_names, force)


def _write(
    run: Path,
    output: Path,
    form: str | None,
    words: tuple[str, ...],
    exact_names: bool,
    force: bool,
) -> None:
    form = form or output.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise GradwatchError(
            f"Expected a file that ends in .csv, .json or .parquet, got {plain(output.name)!r}. "
            "Name it so, or say --format.",
            Exit.USAGE,
        )
    refuse_taken(output, force)
    write = partial(write_csv, exact_names=exact_names) if form == "csv" else FORMATS[form]
    opened = open_run(run)
    stats = exported(opened, [_stat(opened, word) for word in words])
    with share_bar("exporting") as tick:
        size = write_whole(output, lambda file: write(opened, stats, file, tick), force=force)
    click.echo(
        f"Wrote {plain(str(output))}: {len(stats)} statistics, {len(opened.steps)} steps, "
        f"{size / 1e6:.2f} MB.",
        err=True,
    )


def _stat(run: Run, word: str) -> Stat:
    stats = {str(stat): stat for stat in run.series}
    if word not in stats:
        raise GradwatchError(
            f"Expected a statistic this run has, got {word!r}; it has {', '.join(stats)}.",
            Exit.USAGE,
        )
    return stats[word]
