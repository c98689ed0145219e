"""What a page shows in words: health, findings, and facts about the run itself.

Is it healthy, what is wrong, since when, where first, what to try; what the run is, what recording
it cost, what happened, what was not recorded.
"""

import math
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any

import numpy as np

from gradwatch.checks import CHECKS
from gradwatch.diagnosis import Diagnosis
from gradwatch.finding import Finding
from gradwatch.run import EventKind, Run
from gradwatch.stats import Family, Stat
from gradwatch.text import many
from gradwatch.views.model.curves import evidence_chart
from gradwatch.views.model.titles import rounded

CHARTS = 3
"""Charts shown with one finding; the rest of its evidence is listed."""
CHARTED = 12
"""Findings that get charts: more would not be read, and the report has a size to keep."""
NOT_DRAWN = frozenset({Stat.WEIGHT_HASH})
"""A hash has no size: its curve would be noise."""
SHOWN_INFO = (
    "name",
    "versions",
    "ranks",
    "loss_kind",
    "classes",
    "chance",
    "optimizer",
    "complete",
)
"""The parts of `run.info` that are shown: no path, host name or environment leaves the machine."""
NOT_RECORDED = frozenset(
    {
        EventKind.NOT_RECORDED,
        EventKind.SWITCHED_OFF,
        EventKind.DAMAGE,
        EventKind.GAP,
        EventKind.STRETCHED,
        EventKind.RETENTION,
    }
)
MOST_EVENTS = 200

_FAMILY_WORDS = {
    Family.GRAD: "gradients",
    Family.WEIGHT: "weights",
    Family.UPDATE: "updates",
    Family.OPTIM: "optimizer state (Adam family only)",
    Family.ACT: "activations",
    Family.PROBE: "non-finite probes of layer outputs",
    Family.GROUP: "learning rates",
}


def health(run: Run, diagnosis: Diagnosis | None) -> dict[str, Any]:
    """The verdict in one word, and one line that explains it."""
    if diagnosis is None:
        seen = f"{many(len(run.layers), 'layer')}, {many(run.step_count, 'step')}"
        return {"state": "unknown", "line": f"not diagnosed: {seen}", "counts": {}}
    line = "; ".join(filter(None, (diagnosis.line, diagnosis.unseen)))
    return {"state": diagnosis.verdict, "line": line, "counts": diagnosis.counts}


def findings(run: Run, diagnosis: Diagnosis | None, first: int, last: int) -> list[dict[str, Any]]:
    """In the order of the diagnosis, most important first; each with charts and explanation."""
    if diagnosis is None:
        return []
    pages = {check.NAME: cleandoc(check.__doc__ or "") for check in CHECKS}
    shown = []
    for rank, item in enumerate(diagnosis.findings):
        drawn = [piece for piece in item.evidence if piece.stat not in NOT_DRAWN][:CHARTS]
        charts = [evidence_chart(run, piece, first, last) for piece in drawn if rank < CHARTED]
        shown.append(
            {
                **_finding(item),
                "explanation": pages.get(item.check, ""),
                "charts": [chart for chart in charts if chart is not None],
            }
        )
    return shown


def _finding(item: Finding) -> dict[str, Any]:
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
                "severity": c.severity.word,
                "message": c.message,
                "first_step": c.first_step,
                "last_step": c.last_step,
                "layers": list(c.layers),
            }
            for c in item.consequences
        ],
    }


def timeline(diagnosis: Diagnosis | None) -> list[str]:
    """In which order signals left their usual range, where the diagnosis says so."""
    return [str(onset) for onset in (diagnosis.timeline if diagnosis else ())]


def skipped(diagnosis: Diagnosis | None) -> list[dict[str, str]]:
    """The checks that could not run, for the page; none without a diagnosis."""
    return [
        {"check": s.check, "reason": s.reason} for s in (diagnosis.skipped if diagnosis else ())
    ]


def about(run: Run) -> dict[str, Any]:
    """Name, size and the parts of the info that may be shown."""
    info = {key: _plainly(run.info[key]) for key in SHOWN_INFO if key in run.info}
    return {
        "name": str(run.info.get("name", "run")),
        "first_step": int(run.steps[0]) if len(run.steps) else 0,
        "last_step": int(run.steps[-1]) if len(run.steps) else 0,
        "steps": run.step_count,
        "layers": len(run.layers),
        "tensors": len(run.parameters),
        "elements": sum(subject.count for subject in run.parameters),
        "info": info,
    }


def events(run: Run) -> list[dict[str, Any]]:
    """What happened, oldest first; the latest `MOST_EVENTS` of a talkative run."""
    return [
        {"step": int(e.step), "kind": str(e.kind), "text": e.text, "subject": e.subject}
        for e in run.events[-MOST_EVENTS:]
    ]


def nonfinite_loss(run: Run) -> dict[str, int] | None:
    """On which steps the logged loss was NaN or Inf; None where it never was."""
    marked = run.scalars.get("loss_nonfinite")
    steps = run.steps[marked > 0] if marked is not None else run.steps[:0]
    if not len(steps):
        return None
    return {"first": int(steps[0]), "last": int(steps[-1]), "count": len(steps)}


def cost(run: Run) -> list[str]:
    """Sentences of the recorder about its own price: the free seconds, and what came after."""
    sentences = [event.text for event in run.events if event.kind is EventKind.COST][-1:]
    known = ("spent", "allowance", "overhead_after_allowance", "background")
    spent, free, after, background = (_finite(run.info.get(key)) for key in known)
    if background is not None:
        share = f"{100 * background:.2g} %"
        sentences.insert(0, f"Writing took {share} of a processor in a thread of its own.")
    if spent is not None and free is not None:
        first = f"Recording took {min(spent, free):.2g} of its {free:g} free seconds"
        then = "" if after is None or spent <= free else f", then {100 * after:.2g} % of the time"
        sentences.insert(0, f"{first}{then}.")
    return sentences


def _finite(value: Any) -> float | None:
    """The number in a note from a file, or None where it is none: files are not trusted."""
    finite = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if finite else None


def not_recorded(run: Run) -> list[str]:
    """What was not recorded: whole families first, then what the recorder and the store say."""
    families = {stat.family for stat in run.recorded}
    missing = [
        f"not recorded: {word}" for family, word in _FAMILY_WORDS.items() if family not in families
    ]
    events = [f"{event.kind}: {event.text}" for event in run.events if event.kind in NOT_RECORDED]
    return missing + list(dict.fromkeys(events))[:50]


def signals(run: Run) -> list[dict[str, Any]]:
    """Every recorded statistic, for the table of signals."""
    return [
        {
            "name": str(stat),
            "of": str(stat.kind),
            "cadence": str(stat.family.cadence),
            "unit": stat.unit,
            "meaning": stat.meaning,
        }
        for stat in Stat
        if stat in run.recorded
    ]


def _plainly(value: Any) -> Any:
    """Anything from a run's info as plain JSON: NaN becomes null, unknown things their text."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(float(value)) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plainly(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_plainly(item) for item in value]
    return str(value)
