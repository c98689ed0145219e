"""A diagnosis as a small piece of HTML for notebooks; every name and text escaped."""

from collections.abc import Sequence
from html import escape

from gradwatch.finding import Finding, Severity, Skipped

_COLOUR = {Severity.CRITICAL: "#b3261e", Severity.WARNING: "#8a5a00", Severity.INFO: "#44546a"}
_MOST = 20
"""Findings shown; a notebook's file should stay small."""


def as_html(verdict: str, findings: Sequence[Finding], skipped: Sequence[Skipped]) -> str:
    """A heading, a list of findings, a folded list of what was skipped."""
    items = "".join(_item(finding) for finding in findings[:_MOST])
    more = len(findings) - _MOST
    tail = f"<p>{more} more findings</p>" if more > 0 else ""
    reasons = "".join(f"<li>{escape(s.check)}: {escape(s.reason)}</li>" for s in skipped)
    unseen = (
        f"<details><summary>{len(skipped)} checks could not look</summary><ul>{reasons}</ul>"
        "</details>"
        if skipped
        else ""
    )
    return f"<div><b>{escape(verdict)}</b><ul>{items}</ul>{tail}{unseen}</div>"


def _item(finding: Finding) -> str:
    colour = _COLOUR[finding.severity]
    where = escape(", ".join(finding.layers[:3]))
    follows = "".join(_item(item) for item in finding.consequences[:_MOST])
    advice = escape(finding.advice[0]) if finding.advice else ""
    return (
        f'<li><b style="color:{colour}">{escape(finding.check)}</b> <code>{where}</code> '
        f"{escape(finding.message)}" + (f"<br><i>{advice}</i>" if advice else "")
        + (f"<ul>{follows}</ul>" if follows else "") + "</li>"
    )  # fmt: skip
