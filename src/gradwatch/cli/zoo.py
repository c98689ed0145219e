"""`gradwatch zoo`: labelled trainings, sick and healthy, and our score on them."""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from gradwatch.cli.help import examples
from gradwatch.cli.progress import waiting
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_text
from gradwatch.text import nearest, plain
from gradwatch.views.console import console, prose_width
from gradwatch.views.tables import FittedTable

if TYPE_CHECKING:
    from gradwatch.zoo.score import Score


_LENGTH = click.option(
    "--length",
    type=click.Choice(["default", "short", "long"]),
    default="default",
    show_default=True,
    help="Steps as the recipe has them, 60, or 5,000 (every third family).",
)


@click.group(
    "zoo",
    invoke_without_command=True,
    short_help="List or run labelled trainings; score the diagnosis.",
    epilog=examples("gradwatch zoo", "gradwatch zoo run mlp/vanishing-sigmoid --seed 3"),
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List labelled trainings; run one; score the diagnosis on them. Needs torch."""
    if ctx.invoked_subcommand is None:
        _list()


def _list() -> None:
    rows = [
        (family.name, "sick" if family.sick else "healthy", family.about)
        for family in _families().EVERY
    ]
    titles = ("family", "label", "about")
    console().print(FittedTable(titles, rows, words=("label",), prose="about"))


def _families() -> ModuleType:
    try:
        from gradwatch.zoo import families
    except ModuleNotFoundError as error:
        raise GradwatchError(
            f"The zoo trains networks and needs torch ({error}). Install torch.",
            Exit.USAGE,
        ) from None
    return families


@command.command(
    "run",
    short_help="Train one family and diagnose it.",
    epilog=examples(
        "gradwatch zoo run mlp/vanishing-sigmoid",
        "gradwatch zoo run mlp/vanishing-sigmoid --keep runs/sigmoid",
    ),
)
@click.argument("name")
@click.option("--seed", default=0, show_default=True, help="Chooses sizes, rates and data.")
@_LENGTH
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the recording in this new folder."
)
def run(name: str, seed: int, length: str, keep: Path | None) -> int:
    """Train one family, show its measured labels and the diagnosis."""
    families = {family.name: family for family in _families().EVERY}
    if name not in families:
        raise GradwatchError(
            f"There is no family {plain(name)!r}. Did you mean {nearest(name, families)}? "
            "`gradwatch zoo` lists them all.",
            Exit.USAGE,
        )
    if keep is not None and keep.exists():
        raise GradwatchError(f"{keep} exists already; name a new folder.", Exit.USAGE)
    from gradwatch.cli.diagnose import lines
    from gradwatch.zoo.score import attempt
    from gradwatch.zoo.training import Length

    with waiting("training"):
        trial = attempt(families[name], seed, keep, length=Length(length))
    for label in trial.labels:
        where = ", ".join(sorted(label.layers)) or "whole run"
        click.echo(f"label: {label.fault} ({'strong' if label.strong else 'weak'}) {where}")
    if not trial.labels:
        click.echo("label: healthy")
    click.echo("")
    for line in lines(trial.diagnosis, prose_width()):
        click.echo(line)
    return Exit.HEALTHY


@command.command(
    "score",
    short_help="Print precision, recall and false alarms over many trainings.",
    epilog=examples(
        "gradwatch zoo score --seeds 2 --jobs 4", "gradwatch zoo score --of wider --verbose"
    ),
)
@click.option(
    "--of",
    type=click.Choice(["first", "wider", "all"]),
    default="first",
    show_default=True,
    help="The first hundred families, the wider zoo after public recipes, or both.",
)
@click.option(
    "--half",
    type=click.Choice(["report", "calibrate", "all"]),
    default="report",
    show_default=True,
    help="Rules were calibrated on one half of the families; figures come from the other.",
)
@_LENGTH
@click.option(
    "--rows",
    type=click.Path(path_type=Path),
    help="Add every finished trial to this file, and do not run those again that are in it.",
)
@click.option("--seeds", default=1, show_default=True, help="Trials per family.")
@click.option("--first-seed", default=1000, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option(
    "--figures",
    type=click.Path(path_type=Path),
    help="Write the figures of each check as JSON, which their pages are made with.",
)
@click.option("--verbose", is_flag=True, help="Every trial that was not judged as labelled.")
def score(
    of: str,
    half: str,
    length: str,
    rows: Path | None,
    seeds: int,
    first_seed: int,
    jobs: int,
    figures: Path | None,
    verbose: bool,
) -> int:
    """Print precision, recall, F1, false alarms, culprits and onsets over many trainings."""
    families = _families()
    from gradwatch.zoo.score import score as measure
    from gradwatch.zoo.training import Length

    names = [family.name for family in families.chosen(of, half, Length(length))]
    chosen = range(first_seed, first_seed + seeds)
    click.echo(f"{len(names)} families × {seeds} seeds …", err=True)
    with waiting("training"):
        result = measure(names, chosen, jobs, Length(length), rows)
    for line in table(result, verbose=verbose):
        click.echo(line)
    if figures is not None:
        write_text(figures, figures_text(result), overwrite=True)
    return Exit.HEALTHY


def figures_text(result: "Score") -> str:
    """The figures as JSON, for `gradwatch/checks/figures.json`: a line for each check."""
    rows = ",\n".join(
        f'  "{name}": [{false}, {hits}, {sick}]'
        for name, (false, hits, sick, _) in result.by_check().items()
    )
    return f'{{\n "healthy_runs": {len(result.healthy)},\n "checks": {{\n{rows}\n }}\n}}\n'


def table(result: "Score", *, verbose: bool) -> list[str]:
    """The figures, then one line for each fault."""
    right, judged = result.culprits
    onset = result.onset_error
    alarms, healthy = len(result.alarms), len(result.healthy)
    out = [
        f"sick trials               {len(result.sick)}",
        f"healthy trials            {healthy}",
        f"label not verified        {len(result.dropped)} (left out)",
        f"precision                 {result.precision:.3f}",
        f"recall                    {result.recall:.3f}",
        f"F1                        {result.f1:.3f}",
        f"healthy with a warning    {alarms} ({100 * alarms / max(1, healthy):.1f} %)",
        f"right culprit first       {right} of {judged} ({100 * right / max(1, judged):.0f} %)",
        f"median onset error        {'–' if onset is None else f'{onset:g} steps'}",
        "",
        f"{'fault':<26} {'found':>9} {'wrongly said':>13} {'false alarms':>13}",
    ]
    for name, (false, found, have, wrong) in result.by_check().items():
        out.append(f"{name:<26} {f'{found}/{have}':>9} {wrong:>13} {false:>13}")
    if verbose:
        out.append("")
        out.extend(
            f"{row.family} {row.seed}: missed {sorted(row.missed)}, wrongly {sorted(row.wrong)}, "
            f"first {row.first or 'nothing'}"
            for row in result.rows
            if row.missed
            or row.wrong
            or row.right_culprit is False
            or (row.reported and not row.sick)
        )
    return out
