"""A finding as a small piece of HTML for notebooks: static, no script, every text made harmless."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwatch.text import markup, number

if TYPE_CHECKING:
    from gradwatch.finding.finding import Evidence, Finding

COLOURS = {"critical": "#b3261e", "warning": "#8a5a00", "info": "#44546a"}
MOST_LAYERS = 3
MOST_EVIDENCE = 8
MOST_FOLLOWING = 20
"""Of each list this many are shown: a notebook's file should stay small."""
SENTENCE = 400


def as_html(finding: "Finding") -> str:
    """What, where, since when; cause and advice; the evidence as a table; what follows from it."""
    more = finding.consequences[:MOST_FOLLOWING]
    follows = "".join(f"<li>{line(item)}</li>" for item in more)
    return (
        f"<div>{line(finding)}<br>steps {finding.first_step} to {finding.last_step}"
        + (f"<br>{markup(finding.cause, SENTENCE)}" if finding.cause else "")
        + _list(finding.advice)
        + _evidence(finding.evidence[:MOST_EVIDENCE])
        + (f"<b>follows from it</b><ul>{follows}</ul>" if follows else "")
        + "</div>"
    )


def line(finding: "Finding") -> str:
    """Check, severity, layers and message in one line."""
    word = finding.severity.word
    where = ", ".join(markup(layer, 60) for layer in finding.layers[:MOST_LAYERS])
    rest = len(finding.layers) - MOST_LAYERS
    return (
        f'<b style="color:{COLOURS[word]}">{markup(finding.check, 60)}</b> ({word}) '
        f"<code>{where}</code>{f' and {rest} more' if rest > 0 else ''} "
        f"{markup(finding.message, SENTENCE)}"
    )


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{markup(text, SENTENCE)}</li>" for text in lines[:MOST_EVIDENCE])
    return f"<ul>{items}</ul>" if items else ""


def _evidence(items: Sequence["Evidence"]) -> str:
    if not items:
        return ""
    rows = "".join(
        f"<tr><td>{markup(item.stat, 60)}</td><td>{markup(item.subject or 'run', 60)}</td>"
        f"<td>{item.step}</td><td>{number(item.measured)}</td>"
        f"<td>{'–' if item.limit is None else number(item.limit)}</td></tr>"
        for item in items
    )
    heads = "".join(f"<th>{head}</th>" for head in ("measured", "where", "step", "value", "limit"))
    return f"<table><tr>{heads}</tr>{rows}</table>"
