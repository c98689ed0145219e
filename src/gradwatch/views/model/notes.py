"""What a run says about itself: what it is, what it cost, what happened, what was not looked at."""

import math
from typing import Any

from gradwatch.run import EventKind, Run
from gradwatch.stats import ENTRIES, Family
from gradwatch.views.model.encode import plainly

TELLS = ("name", "versions", "ranks", "loss_kind", "classes", "chance", "optimizer", "complete")
"""The parts of `run.info` that are shown: no path, host name or environment leaves the machine."""
UNSEEN = frozenset(
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


def about(run: Run) -> dict[str, Any]:
    """Name, size and the parts of the info that may be told."""
    info = {key: plainly(run.info[key]) for key in TELLS if key in run.info}
    return {
        "name": str(run.info.get("name", "run")),
        "first_step": int(run.steps[0]) if len(run.steps) else 0,
        "last_step": int(run.steps[-1]) if len(run.steps) else 0,
        "steps": len(run.steps),
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
    """Sentences of the recorder about its own price."""
    told = [event.text for event in run.events if event.kind is EventKind.COST][-1:]
    overhead, spent, free = (_finite(run.info.get(k)) for k in ("overhead", "spent", "allowance"))
    if overhead is not None:
        seconds = "" if spent is None else f"{spent:.2g} s, "
        told.insert(0, f"Recording took {seconds}{100 * overhead:.2g} % of the run's time.")
    if spent is not None and free is not None and spent <= free:
        told.insert(1, f"The first {free:g} s are free, so that short runs are recorded whole.")
    return told


def _finite(value: Any) -> float | None:
    """What an untrusted note says, if it is a number."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if known else None


def unseen(run: Run) -> list[str]:
    """What was not recorded: whole families first, then what the recorder and the store say."""
    families = {item.family for item in ENTRIES if item.stat in run.recorded}
    missing = [
        f"not recorded: {word}" for family, word in _FAMILY_WORDS.items() if family not in families
    ]
    said = [f"{event.kind}: {event.text}" for event in run.events if event.kind in UNSEEN]
    return missing + list(dict.fromkeys(said))[:50]


def signals(run: Run) -> list[dict[str, Any]]:
    """Every recorded statistic, for the table of signals."""
    return [
        {
            "name": str(item.stat),
            "of": str(item.kind),
            "cadence": str(item.family.cadence),
            "unit": item.unit,
            "meaning": item.meaning,
        }
        for item in ENTRIES
        if item.stat in run.recorded
    ]
