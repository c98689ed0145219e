"""`gradwatch diagnose`: what is wrong with a run, since when, where it began, what to try."""

import textwrap
from collections.abc import Callable
from typing import Any

import click

from gradwatch.cli.places import PlaceArgument
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.errors import Exit
from gradwatch.finding import Finding, Severity
from gradwatch.jsonio import dumps
from gradwatch.store import open_run
from gradwatch.store.places import Place
from gradwatch.text import named, plain, shortened

WIDTH = 80
Command = Callable[..., Any]
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


@click.command("diagnose")
@click.argument("run", type=PlaceArgument())
@click.option("--json", "as_json", is_flag=True, help="The whole diagnosis as JSON.")
@fail_on("warning")
def command(run: Place, as_json: bool, limit: Severity) -> int:
    """Say what is wrong with a run, since when, where it began and what to try.

    Exit code 0: nothing at or above --fail-on. 1: something. 3: the run could not be read.
    """
    diagnosis = diagnose(open_run(run))
    if as_json:
        click.echo(dumps(diagnosis.to_dict(), indent=2))
    else:
        for line in lines(diagnosis):
            click.echo(line)
    return Exit.FINDINGS if diagnosis.at_least(limit) else Exit.HEALTHY


def lines(diagnosis: Diagnosis) -> list[str]:
    """The diagnosis for a terminal of 80 columns."""
    out = [_headline(diagnosis), ""]
    for finding in diagnosis.findings:
        out.extend([*_finding(finding), ""])
    if diagnosis.timeline:
        order = "; ".join(plain(str(onset)) for onset in diagnosis.timeline)
        out.extend([*_wrapped(f"Order of events: {order}.", ""), ""])
    out.extend(_skipped(diagnosis))
    if diagnosis.findings:
        out.append(f"Read more: gradwatch explain {diagnosis.findings[0].check}")
    return out


def _headline(diagnosis: Diagnosis) -> str:
    verdicts = {True: "Healthy", False: "Sick", None: "Unknown: too little was recorded"}
    counted = diagnosis.at_least(Severity.WARNING)
    many = "no finding" if not counted else f"{len(counted)} finding" + "s" * (len(counted) > 1)
    size = f"{diagnosis.layers} layers, {diagnosis.steps} steps, {len(diagnosis.checked)} checks"
    return f"{verdicts[diagnosis.healthy]}: {many} in {size}"


def _finding(finding: Finding) -> list[str]:
    layer = shortened(named(finding.layers[0]), 28) if finding.layers else "whole run"
    head = click.style(f"{finding.severity.word:<8}", fg=_COLOURS[finding.severity], bold=True)
    steps = _steps(finding)
    out = [f"{head} {click.style(f'{finding.check:<22}', bold=True)} {layer}  {steps}"]
    out.extend(_wrapped(plain(finding.message), "  "))
    if finding.cause:
        out.extend(_wrapped(f"Why: {plain(finding.cause)}", "  "))
    if finding.batch:
        ids = ", ".join(plain(str(sample)) for sample in finding.batch[:16])
        more = f" and {len(finding.batch) - 16} more" if len(finding.batch) > 16 else ""
        out.extend(_wrapped(f"Batch of step {finding.first_step}: {ids}{more}", "  "))
    for number, advice in enumerate(finding.advice, 1):
        out.extend(_wrapped(f"{'Try:' if number == 1 else '    '} {number}. {advice}", "  "))
    for item in finding.consequences:
        text = f"└ {item.check}, step {item.first_step}: {plain(item.message)}"
        out.extend(_wrapped(text, "  "))
    return out


def _steps(finding: Finding) -> str:
    if finding.first_step == finding.last_step:
        return f"step {finding.first_step}"
    return f"steps {finding.first_step}–{finding.last_step}"


def _skipped(diagnosis: Diagnosis) -> list[str]:
    """Checks that could not look, gathered by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in diagnosis.skipped:
        by_reason.setdefault(item.reason, []).append(item.check)
    out = []
    for reason, checks in by_reason.items():
        out.extend(_wrapped(f"Not looked at ({plain(reason)}): {', '.join(checks)}.", ""))
    return [*out, ""] if out else out


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    "
    )  # fmt: skip
