"""Is it healthy, what is wrong, since when, where first, what to try."""

from collections.abc import Sequence
from typing import Any, Protocol

from gradwatch.finding import Finding, Severity, Skipped
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.views.model.encode import rounded
from gradwatch.views.model.lines import evidence_chart

CHARTS = 3
"""Charts shown with one finding; the rest of its evidence is listed."""
CHARTED = 12
"""Findings that get charts: more would not be read, and the report has a size to keep."""


NOT_DRAWN = frozenset({Stat.WEIGHT_HASH})
"""A hash has no size: its curve would be noise."""


class Diagnosed(Protocol):
    """What the views need of a diagnosis."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def skipped(self) -> Sequence[Skipped]: ...
    @property
    def healthy(self) -> bool | None: ...


def health(run: Run, diagnosis: Diagnosed | None) -> dict[str, Any]:
    """One word for the state and one line that says it."""
    seen = f"{_many(len(run.layers), 'layer')}, {_many(len(run.steps), 'recorded step')}"
    if diagnosis is None:
        return {"state": "unknown", "line": f"not diagnosed: {seen}", "counts": {}}
    counts = {
        level.word: sum(item.severity is level for item in diagnosis.findings)
        for level in reversed(Severity)
    }
    worst = max((item.severity for item in diagnosis.findings), default=Severity.INFO)
    if not len(run.steps):
        state, line = "unknown", "nothing was recorded yet"
    elif diagnosis.healthy:
        state = "healthy"
        noted = f", {_many(counts['info'], 'note')}" if counts["info"] else ""
        line = f"nothing wrong found in {seen}{noted}"
    else:
        state = worst.word if diagnosis.healthy is False else "unknown"
        line = f"{_many(len(diagnosis.findings), 'finding')} in {seen}"
    if diagnosis.skipped:
        line += f"; {_many(len(diagnosis.skipped), 'check')} could not look"
    return {"state": state, "line": line, "counts": counts}


def findings(
    run: Run, diagnosis: Diagnosed | None, first: int, last: int, explained: dict[str, str]
) -> list[dict[str, Any]]:
    """In the order of the diagnosis, most important first; each with charts and explanation."""
    if diagnosis is None:
        return []
    return [
        _shown(run, item, first, last, explained, charted=rank < CHARTED)
        for rank, item in enumerate(diagnosis.findings)
    ]


def _shown(
    run: Run,
    item: Finding,
    first: int,
    last: int,
    explained: dict[str, str],
    charted: bool,
) -> dict[str, Any]:
    charts = []
    if charted:
        drawn = [piece for piece in item.evidence if piece.stat not in NOT_DRAWN][:CHARTS]
        made = (evidence_chart(run, piece, first, last) for piece in drawn)
        charts = [chart for chart in made if chart is not None]
    return {
        "check": item.check,
        "severity": item.severity.word,
        "layers": list(item.layers),
        "first_step": item.first_step,
        "last_step": item.last_step,
        "message": item.message,
        "cause": item.cause,
        "advice": list(item.advice),
        "evidence": [
            {
                "stat": piece.stat,
                "subject": piece.subject,
                "step": piece.step,
                "measured": rounded(piece.measured),
                "limit": rounded(piece.limit),
            }
            for piece in item.evidence
        ],
        "consequences": [
            {
                "check": c.check,
                "message": c.message,
                "first_step": c.first_step,
                "layers": list(c.layers),
            }
            for c in item.consequences
        ],
        "explanation": explained.get(item.check, ""),
        "charts": charts,
    }


def timeline(diagnosis: Diagnosed | None) -> list[str]:
    """In which order signals left their usual range, where the diagnosis says so."""
    return [str(onset) for onset in getattr(diagnosis, "timeline", ())]


def skipped(diagnosis: Diagnosed | None) -> list[dict[str, str]]:
    return [
        {"check": s.check, "reason": s.reason} for s in (diagnosis.skipped if diagnosis else ())
    ]


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}".replace(",", " ")
