"""`gradwatch diagnose`: what is wrong with a run, since when, where it began, what to try."""

import textwrap
from collections.abc import Callable
from typing import Any

import click

from gradwatch.cli.help import examples
from gradwatch.cli.places import run_argument
from gradwatch.cli.progress import waiting
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.errors import Exit
from gradwatch.finding import Finding, Severity
from gradwatch.store import open_run
from gradwatch.store.places import Place
from gradwatch.text import cut, named, plain, shortened
from gradwatch.views.console import print_json, prose_width

WIDTH = 80
Command = Callable[..., Any]
_WORDS = {Severity.INFO: "note"}
_COLOURS = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def fail_on(default: str) -> Callable[[Command], Command]:
    """The option `--fail-on`; the command is given its severity as `limit`."""
    return click.option(
        "--fail-on",
        "limit",
        type=click.Choice([severity.word for severity in Severity]),
        default=default,
        show_default=True,
        callback=lambda context, option, word: Severity[word.upper()],
        help="Exit with 1 when a finding is at least this grave.",
    )


verbose_option = click.option(
    "--verbose",
    is_flag=True,
    help="Also why and what to try of each note, and what could not be looked at.",
)


@click.command(
    "diagnose",
    short_help="Say what is wrong with a run, where, and what to try.",
    epilog=examples("gradwatch diagnose", "gradwatch diagnose my-run --json --fail-on critical"),
)
@run_argument
@click.option("--json", "as_json", is_flag=True, help="The whole diagnosis as JSON.")
@verbose_option
@fail_on("warning")
def command(run: Place, as_json: bool, verbose: bool, limit: Severity) -> int:
    """Say what is wrong with a run, since when, where it began and what to try.

    Exit code 0: nothing at or above --fail-on. 1: something. 3: the run could not be read.
    """
    with waiting("diagnosing"):
        diagnosis = diagnose(open_run(run))
    if as_json:
        print_json(diagnosis.to_dict(), indent=2)
    else:
        for line in lines(diagnosis, prose_width(), verbose=verbose):
            click.echo(line)
    return Exit.FINDINGS if diagnosis.at_least(limit) else Exit.HEALTHY


def lines(diagnosis: Diagnosis, width: int = WIDTH, *, verbose: bool = False) -> list[str]:
    """The diagnosis for a terminal; of notes one line each, unless `verbose`."""
    out = [*_wrapped(f"{diagnosis.verdict.capitalize()}: {plain(diagnosis.line)}", "", width), ""]
    whole: list[Finding] = []
    notes: list[Finding] = []
    for finding in diagnosis.findings:
        (notes if finding.severity is Severity.INFO and not verbose else whole).append(finding)
    for finding in whole:
        out.extend([*finding_lines(finding, width), ""])
    out.extend([*(_note(note, width) for note in notes), *[""] * bool(notes)])
    if diagnosis.timeline:
        order = "; ".join(plain(str(onset)) for onset in diagnosis.timeline)
        out.extend([*_wrapped(f"Order of events: {order}.", "", width), ""])
    if verbose:
        out.extend(_skipped(diagnosis, width))
    elif diagnosis.unseen:
        out.append(f"{diagnosis.unseen}; --verbose lists them.")
    if diagnosis.findings:
        out.append(f"Read more: gradwatch explain {diagnosis.findings[0].check}")
    return out


def finding_lines(finding: Finding, width: int = WIDTH) -> list[str]:
    """One finding: what, where, since when; why; what to try; what follows from it."""
    word = _WORDS.get(finding.severity, finding.severity.word)
    steps = _steps(finding)
    room = width - len(f"{word:<8} {finding.check}    {steps}")
    layer = shortened(named(finding.layers[0]), max(room, 12)) if finding.layers else "whole run"
    head = click.style(f"{word:<8}", fg=_COLOURS[finding.severity], bold=True)
    out = [f"{head} {click.style(finding.check, bold=True)}  {layer}  {steps}"]
    out.extend(_wrapped(plain(finding.message), "  ", width))
    if finding.cause:
        out.extend(_wrapped(f"Why: {plain(finding.cause)}", "  ", width))
    if finding.batch:
        ids = ", ".join(plain(str(sample)) for sample in finding.batch[:16])
        more = f" and {len(finding.batch) - 16} more" if len(finding.batch) > 16 else ""
        out.extend(_wrapped(f"Batch of step {finding.first_step}: {ids}{more}", "  ", width))
    for number, advice in enumerate(finding.advice, 1):
        text = f"{'Try:' if number == 1 else '    '} {number}. {advice}"
        out.extend(_wrapped(text, "  ", width, hanging=10))
    for item in finding.consequences:
        text = f"└ {item.check}, step {item.first_step}: {plain(item.message)}"
        out.extend(_wrapped(text, "  ", width, hanging=4))
    return out


def _note(finding: Finding, width: int) -> str:
    """A note in one line; what does not fit is for --verbose."""
    head = click.style("note    ", fg=_COLOURS[finding.severity], bold=True)
    return f"{head} {cut(f'{finding.check}: {plain(finding.message)}', width - 9)}"


def _steps(finding: Finding) -> str:
    if finding.first_step == finding.last_step:
        return f"step {finding.first_step}"
    return f"steps {finding.first_step}–{finding.last_step}"


def _skipped(diagnosis: Diagnosis, width: int) -> list[str]:
    """Checks that could not look, gathered by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in diagnosis.skipped:
        by_reason.setdefault(item.reason, []).append(item.check)
    out = [f"{diagnosis.unseen}:"] if by_reason else []
    for reason, checks in by_reason.items():
        out.extend(_wrapped(f"{', '.join(checks)}: {plain(reason)}.", "  ", width))
    return [*out, ""] if out else out


def _wrapped(text: str, indent: str, width: int, hanging: int = 6) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,  # "loss-scale-overflow" is one word
    )
