"""`gradwatch drift`: what moved between two checkpoints, and what did not."""

from pathlib import Path
from textwrap import fill

import click

from gradwatch.analysis.drift import of_checkpoints
from gradwatch.checkpoints import Drift, ScanOptions, drift
from gradwatch.cli.diagnose import fail_on
from gradwatch.cli.help import examples
from gradwatch.cli.progress import bytes_bar
from gradwatch.errors import Exit
from gradwatch.finding import Severity
from gradwatch.text import number, percent, plain, several
from gradwatch.views.console import console, print_json, prose_width
from gradwatch.views.tables import FittedTable, fitted

_SHOWN = 40


@click.command(
    "drift",
    short_help="Say how far each layer moved between two checkpoints.",
    epilog=examples(
        "gradwatch drift before.safetensors after.safetensors",
        "gradwatch drift base.pt adapter --fail-on warning",
    ),
)
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Every tensor as JSON.")
@fail_on("critical")
@click.option("--workers", type=click.IntRange(min=0), help="Processes; 0 does all in this one.")
@click.option("--dask", metavar="ADDRESS", help="Scheduler of a running Dask cluster.")
def command(
    before: Path, after: Path, as_json: bool, limit: Severity, workers: int | None, dask: str | None
) -> int:
    """Say how far every layer moved from BEFORE to AFTER, and which did not move at all.

    AFTER may be an adapter (LoRA) of BEFORE. Exit code 1: a finding at or above --fail-on; the
    gravest is that nothing moved. 3: a file could not be read.
    """
    with bytes_bar() as progress:
        found = drift(before, after, options=ScanOptions(workers, dask, progress))
    if as_json:
        print_json({**found.to_dict(), "analysis": of_checkpoints(found)}, indent=2)
    else:
        _show(found)
    grave = any(finding.severity >= limit for finding in found.findings)
    return Exit.FINDINGS if grave else Exit.HEALTHY


def _show(found: Drift) -> None:
    moved = sum(tensor.moved for tensor in found.tensors)
    click.echo(f"{moved} of {len(found.tensors)} tensors moved")
    if moved:
        click.echo(fill(_drifted(found), prose_width()))
    for finding in found.findings:
        said = f"{finding.severity.word:<8} {finding.check}: {plain(finding.message)}"
        for text, margin in ((said, ""), (f"Why: {plain(finding.cause)}", "  ")):
            click.echo(
                fill(text, prose_width(), initial_indent=margin, subsequent_indent=f"{margin}    ")
            )
    if found.tensors:
        console().print(_table(found))
    if len(found.tensors) > _SHOWN:
        click.echo(f"… and {len(found.tensors) - _SHOWN} more tensors; --json has all of them.")
    for title, names in (
        ("Renamed", [f"{old} → {new}" for old, new in found.renamed.items()]),
        ("Reshaped", [f"{n} {list(a)} → {list(b)}" for n, (a, b) in found.reshaped.items()]),
        ("Missing after", list(found.missing)),
        ("New after", list(found.added)),
        ("Not compared", [f"{name}: {why}" for name, why in found.not_compared.items()]),
    ):
        for name in names[:8]:
            click.echo(f"{title}: {plain(name)}")
        if len(names) > 8:
            click.echo(f"{title}: … and {len(names) - 8} more")


def _drifted(found: Drift) -> str:
    """How far on average and at most, and which moved further than the others."""
    analysis = of_checkpoints(found)
    if analysis.mean_drift is None or analysis.max_drift is None:
        return "Drift: not measured in every tensor."
    mean, most = percent(analysis.mean_drift), percent(analysis.max_drift)
    text = f"Drift: {mean} on average, {most} at most ({analysis.severity.value})"
    affected = [fitted(name, prose_width() // 2) for name in analysis.affected_layers]
    return f"{text}; furthest: {several(affected)}." if affected else f"{text}."


def _table(found: Drift) -> FittedTable:
    ordered = sorted(found.tensors, key=lambda tensor: -tensor.sums.relative_change)
    rows = []
    for tensor in ordered[:_SHOWN]:
        sums, count = tensor.sums, max(tensor.sums.count, 1)
        parts = (sums.flipped, sums.zeros_before, sums.zeros_after)
        cells = (
            tensor.name,
            number(sums.relative_change) if tensor.moved else "did not move",
            f"{sums.cosine:.4f}",
            *("–" if tensor.adapted else f"{100 * part / count:.1f} %" for part in parts),
        )
        rows.append(cells)
    titles = ("tensor", "change", "cosine", "flips", "zeros", "then")
    return FittedTable(titles, rows, spare=("flips", "then", "zeros"))
