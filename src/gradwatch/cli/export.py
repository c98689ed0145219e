"""`gradwatch export`: a run's numbers for other tools."""

from functools import partial
from pathlib import Path

import click

from gradwatch.cli.help import examples
from gradwatch.cli.places import run_argument
from gradwatch.cli.progress import share_bar, waiting
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import refuse_taken, write_whole
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.store import open_run
from gradwatch.store.layout import LOG, STEPS
from gradwatch.store.places import Place, is_url
from gradwatch.text import nearest, plain
from gradwatch.views.export import exported, write_csv, write_json, write_parquet, write_tensorboard

FORMATS = {"csv": write_csv, "json": write_json, "parquet": write_parquet}


@click.command(
    "export",
    short_help="Write a run's numbers as csv, json or parquet, or copy it.",
    epilog=examples(
        "gradwatch export my-run -o my-run.csv --stat grad_norm",
        "gradwatch export my-run --tensorboard events",
    ),
)
@run_argument
@click.option(
    "-o",
    "--output",
    help="The file to write; its ending says in which format. A URL, or a folder with / behind it: "
    "copy the run there.",
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
    run: Place,
    output: str | None,
    tensorboard: Path | None,
    form: str | None,
    words: tuple[str, ...],
    exact_names: bool,
    force: bool,
) -> None:
    """Write every recorded value of a run: csv, json or parquet, by the file's ending.

    Or copy the run, also while it grows: -o s3://bucket/runs/NAME/.
    """
    if (output is None) == (tensorboard is None):
        raise click.UsageError("Say either -o FILE or --tensorboard DIR.")
    if tensorboard is not None:
        with waiting("writing events"):
            path = write_tensorboard(open_run(run), tensorboard)
        click.echo(f"Wrote {plain(str(path))}.", err=True)
    elif output is not None and (is_url(output) or output.endswith("/")):
        if form or words or exact_names:
            raise click.UsageError("A run is copied as it is; leave out the other options.")
        copy(run, Place.of(output))
    elif output is not None:
        _write(run, Path(output), form, words, exact_names, force)


def copy(run: Place, target: Place) -> None:
    """Copy a run as it is, and say so."""
    if target.name.rpartition(".")[2].lower() in FORMATS:
        raise GradwatchError(f"Expected a folder, got {plain(str(target))!r}.", Exit.USAGE)
    with waiting("copying"), run.translated(), target.translated():
        _copy_files(run, target)
    sizes = target.files().values()
    amount = f"{len(sizes)} files, {sum(sizes) / 1e6:.2f} MB"
    click.echo(f"Copied to {plain(str(target))}: {amount}.", err=True)


def _copy_files(run: Place, target: Place) -> None:
    """Where a file of a growing run has another name when its turn comes, look again."""
    from pyarrow.fs import copy_files

    done, again = set[str](), True
    while again:
        again = False
        # Steps first: a step that is listed has its rows. The log last: it says what was removed.
        ordered = sorted(run.files().keys() - done, key=lambda f: (f.endswith(LOG), STEPS not in f))
        for file in ordered:
            there = f"{target.inside}/{file}"
            target.system.create_dir(there.rpartition("/")[0], recursive=True)
            try:
                copy_files(f"{run.inside}/{file}", there, run.system, target.system)
                done |= {file} if file.endswith(".parquet") else set()
            except FileNotFoundError:
                again = True


def _write(
    run: Place,
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
    with waiting("reading the run"):
        opened = open_run(run)
    stats = exported(opened, [_stat(opened, word) for word in words])
    with share_bar("exporting") as tick:
        size = write_whole(output, lambda file: write(opened, stats, file, tick), force=force)
    click.echo(
        f"Wrote {plain(str(output))}: {len(stats)} statistics of {opened.step_count} steps, "
        f"{size / 1e6:.2f} MB.",
        err=True,
    )


def _stat(run: Run, word: str) -> Stat:
    stats = {str(stat): stat for stat in run.series}
    if word not in stats:
        raise GradwatchError(
            f"Expected a statistic this run has, got {plain(word)!r}. Did you mean "
            f"{nearest(word, stats)}? `gradwatch show RUN --signals` lists them all.",
            Exit.USAGE,
        )
    return stats[word]
