"""A diagnosis as a small piece of HTML for notebooks; every name and text escaped."""

from collections.abc import Sequence

from gradwatch.finding import Finding, Skipped
from gradwatch.finding.html import SENTENCE, line
from gradwatch.text import markup

_MOST = 20
"""Findings shown; a notebook's file should stay small."""


def as_html(verdict: str, findings: Sequence[Finding], skipped: Sequence[Skipped]) -> str:
    """A heading, a list of findings, a folded list of what was skipped."""
    items = "".join(_item(finding) for finding in findings[:_MOST])
    more = len(findings) - _MOST
    tail = f"<p>{more} more findings</p>" if more > 0 else ""
    reasons = "".join(
        f"<li>{markup(s.check, 60)}: {markup(s.reason, SENTENCE)}</li>" for s in skipped
    )
    unseen = (
        f"<details><summary>{len(skipped)} checks could not look</summary><ul>{reasons}</ul>"
        "</details>"
        if skipped
        else ""
    )
    return f"<div><b>{markup(verdict, SENTENCE)}</b><ul>{items}</ul>{tail}{unseen}</div>"


def _item(finding: Finding) -> str:
    follows = "".join(_item(item) for item in finding.consequences[:_MOST])
    advice = markup(finding.advice[0], SENTENCE) if finding.advice else ""
    return (
        f"<li>{line(finding)}" + (f"<br><i>{advice}</i>" if advice else "")
        + (f"<ul>{follows}</ul>" if follows else "") + "</li>"
    )  # fmt: skip
