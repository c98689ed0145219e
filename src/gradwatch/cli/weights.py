"""`gradwatch weights`: what is wrong with trained weights, without building the model."""

from itertools import islice
from pathlib import Path
from typing import Any

import click

from gradwatch.analysis.weights import analyze_weights, distribution_health
from gradwatch.checkpoints import scan
from gradwatch.checkpoints.blocks import arrays_of
from gradwatch.checkpoints.measure import TensorStats, overall_casts
from gradwatch.checkpoints.report import as_dict
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.checks.tensors import checkpoint_of
from gradwatch.cli.diagnose import fail_on, lines, verbose_option
from gradwatch.cli.help import examples
from gradwatch.cli.progress import bytes_bar, waiting
from gradwatch.diagnosis import Diagnosis, verdicts
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import refuse_taken, write_whole
from gradwatch.finding import Severity
from gradwatch.run import Run
from gradwatch.text import number, plain
from gradwatch.views.console import console, print_json, prose_width
from gradwatch.views.model import build
from gradwatch.views.page import report
from gradwatch.views.tables import FittedTable, fitted

_SHOWN = 40


@click.command(
    "weights",
    short_help="Say what is wrong with trained weights: a checkpoint.",
    epilog=examples(
        "gradwatch weights model.safetensors",
        "gradwatch weights first.pt last.pt --spectrum -o weights.html",
    ),
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Every tensor and every finding as JSON.")
@click.option("--spectrum", is_flag=True, help="Singular values too: slower, shows low ranks.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page of this checkpoint: one HTML file.",
)
@click.option("--force", is_flag=True, help="Replace the HTML file if it is there.")
@verbose_option
@fail_on("warning")
@click.option("--workers", type=click.IntRange(min=0), help="Processes; 0 does all in this one.")
@click.option("--dask", metavar="ADDRESS", help="Scheduler of a running Dask cluster.")
def command(
    paths: tuple[Path, ...],
    as_json: bool,
    spectrum: bool,
    output: Path | None,
    force: bool,
    verbose: bool,
    limit: Severity,
    workers: int | None,
    dask: str | None,
) -> int:
    """Examine trained weights: safetensors, .pt, .pth, .bin, .npz, .npy, or a folder of them.

    Nothing in the files is trusted: no pickle is ever loaded. Several PATHS in order become steps.
    Exit code 0: nothing at or above --fail-on. 1: something. 3: the file could not be read.
    """
    if output is not None:
        refuse_taken(output, force)
    with bytes_bar() as progress:
        run = scan(list(paths), spectrum=spectrum, workers=workers, dask=dask, progress=progress)
    with waiting("examining the weights"):
        checkpoint, diagnosis = checkpoint_of(run), verdicts(run).diagnosis
    if not checkpoint.tensors and not diagnosis.findings:
        raise GradwatchError(f"{checkpoint.index.path} holds no tensor that can be measured.")
    analysis = None
    if as_json or output is not None:
        # the elements are read again where they can be held: some fields need them
        with waiting("analysing the weights"):
            analysis = analyze_weights(run, elements=arrays_of(checkpoint.index))
    if as_json:
        print_json(as_document(run, analysis), indent=2)
    else:
        _show(run, checkpoint, diagnosis, verbose)
    if output is not None:
        text = report(build(run, diagnosis, weights=analysis)).encode()
        size = write_whole(output, lambda file: file.write(text), force=force)
        click.echo(f"Wrote {plain(str(output))} ({size / 1e6:.2f} MB).", err=True)
    return Exit.FINDINGS if diagnosis.at_least(limit) else Exit.HEALTHY


def as_document(run: Run, analysis: Any) -> dict[str, Any]:
    """What `--json` says of a scanned checkpoint."""
    said = verdicts(run).diagnosis.to_dict()
    return {
        **as_dict(checkpoint_of(run), run.steps.tolist()),
        **{key: said[key] for key in ("verdict", "counts", "findings", "skipped")},
        "analysis": analysis,
    }


def _show(run: Run, checkpoint: Checkpoint, diagnosis: Diagnosis, verbose: bool) -> None:
    index = checkpoint.index
    elements = sum(tensor.tensor.count for tensor in checkpoint.tensors)
    size = f"{elements:,} elements, {index.bytes / 1e6:,.1f} MB"
    click.echo(f"{plain(index.path)}:")
    click.echo(f"  {index.format}, {len(checkpoint.tensors)} tensors, {size}")
    for line in lines(diagnosis, prose_width(), verbose=verbose):
        click.echo(line)
    click.echo()
    out = console()
    out.print(_table(checkpoint))
    rest = len(checkpoint.by_name) - _SHOWN
    if rest > 0:
        click.echo(f"… and {rest} more tensors; --json has all of them.")
    health = distribution_health(run)
    if health.score is not None:
        click.echo(f"Weight analysis: {health.status.value} ({health.score:.0f} of 100)")
    casts = [
        (
            str(target),
            f"{number(cast.headroom)} ×",
            f"{100 * cast.subnormal_fraction:.2f} %",
            f"{100 * cast.vanishing_fraction:.2f} %",
        )
        for target, cast in overall_casts(checkpoint.tensors).items()
    ]
    if casts:
        click.echo()
        out.print(FittedTable(("stored as", "headroom", "lose digits", "vanish"), casts))
    for name, reason in list(index.left_out.items())[:8]:
        room = prose_width() - len(reason) - 13
        click.echo(f"Left out: {fitted(name, max(room, 40))}: {plain(reason)}.")
    for note in index.notes:
        click.echo(plain(note))


def _table(checkpoint: Checkpoint) -> FittedTable:
    """One row per tensor."""
    numbers = ["mean", "std", "min", "max", "zeros"]
    if checkpoint.spectra is not None:
        numbers = ["std", "max |x|", "zeros", "rank"]
    return FittedTable(
        ["tensor", "shape", "type", *numbers],
        [_cells(checkpoint, *item) for item in islice(checkpoint.by_name.items(), _SHOWN)],
        words=("shape", "type"),
        spare=(numbers[0], "zeros", "type"),
    )


def _cells(checkpoint: Checkpoint, name: str, stats: TensorStats) -> list[str]:
    tensor, moments = stats.tensor, stats.moments
    kind = _TYPES.get(str(tensor.element), str(tensor.element))
    shape = "×".join(map(str, tensor.shape)) or "–"
    zeros = f"{100 * stats.zero_fraction:.0f} %" if tensor.count else "–"
    wanted = ("mean", "std", "min", "max") if checkpoint.spectra is None else ("std", "abs_max")
    numbers = [number(float(moments[name])) for name in wanted]
    rank = [] if checkpoint.spectra is None else [_rank(checkpoint, tensor.name)]
    return [name, shape, kind, *numbers, zeros, *rank]


def _rank(checkpoint: Checkpoint, name: str) -> str:
    """Effective rank of the smaller side; of large matrices the stable rank, marked."""
    spectrum = (checkpoint.spectra or {}).get(name)
    if spectrum is None:
        return "–"
    rank = spectrum.effective_rank if spectrum.exact else spectrum.stable_rank
    return f"{'' if spectrum.exact else '≥'}{number(rank)}/{spectrum.full_rank}"


_TYPES = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
