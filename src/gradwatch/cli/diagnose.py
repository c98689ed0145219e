"""`gradwatch diagnose`: what is wrong with a run, since when, where it began, what to try."""

import json
import math
import textwrap
from pathlib import Path
from typing import Any

import click

from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.errors import Exit
from gradwatch.finding import Finding, Severity
from gradwatch.store import open_run
from gradwatch.text import plain, shortened

WIDTH = 80
_LEVELS = [severity.word for severity in Severity]
_COLOURS = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@click.command("diagnose")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole diagnosis as JSON.")
@click.option(
    "--fail-on",
    type=click.Choice(_LEVELS),
    default="warning",
    show_default=True,
    help="Exit with 1 when a finding is at least this grave.",
)
def command(run: Path, as_json: bool, fail_on: str) -> int:
    """Say what is wrong with a run, since when, where it began and what to try.

    Exit code 0: nothing at or above --fail-on. 1: something. 3: the run could not be read.
    """
    found = diagnose(open_run(run))
    if as_json:
        click.echo(json.dumps(strict(found.to_dict()), ensure_ascii=False, indent=2))
    else:
        for line in lines(found):
            click.echo(line)
    return Exit.FINDINGS if found.at_least(Severity[fail_on.upper()]) else Exit.HEALTHY


def strict(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return value


def lines(found: Diagnosis) -> list[str]:
    """The diagnosis for a terminal of 80 columns."""
    out = [_headline(found), ""]
    for finding in found.findings:
        out.extend([*_finding(finding), ""])
    if found.timeline:
        order = "; ".join(plain(str(onset)) for onset in found.timeline)
        out.extend([*_wrapped(f"Order of events: {order}.", ""), ""])
    out.extend(_skipped(found))
    if found.findings:
        out.append(f"Read more: gradwatch explain {found.findings[0].check}")
    return out


def _headline(found: Diagnosis) -> str:
    verdicts = {True: "Healthy", False: "Sick", None: "Unknown: too little was recorded"}
    counted = found.at_least(Severity.WARNING)
    many = "no finding" if not counted else f"{len(counted)} finding" + "s" * (len(counted) > 1)
    size = f"{found.layers} layers, {found.steps} steps, {len(found.checked)} checks"
    return f"{verdicts[found.healthy]}: {many} in {size}"


def _finding(finding: Finding) -> list[str]:
    layer = shortened(finding.layers[0] or "(model)", 28) if finding.layers else "whole run"
    head = click.style(f"{finding.severity.word:<8}", fg=_COLOURS[finding.severity], bold=True)
    steps = _steps(finding)
    out = [f"{head} {click.style(f'{finding.check:<22}', bold=True)} {layer}  {steps}"]
    out.extend(_wrapped(plain(finding.message), "  "))
    if finding.cause:
        out.extend(_wrapped(f"Why: {plain(finding.cause)}", "  "))
    if finding.batch:
        ids = ", ".join(plain(str(one)) for one in finding.batch[:16])
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


def _skipped(found: Diagnosis) -> list[str]:
    """Checks that could not look, gathered by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in found.skipped:
        by_reason.setdefault(item.reason, []).append(item.check)
    out = []
    for reason, checks in by_reason.items():
        out.extend(_wrapped(f"Not looked at ({plain(reason)}): {', '.join(checks)}.", ""))
    return [*out, ""] if out else out


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    "
    )  # fmt: skip
