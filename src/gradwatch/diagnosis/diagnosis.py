"""The result of looking at a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradwatch.finding import MOST_FOLLOWING, SENTENCE, Finding, Severity, Skipped
from gradwatch.notebook import details, items
from gradwatch.text import markup

FORMAT = 1
"""Number of the JSON's form; it grows when a field changes its meaning or goes."""


@dataclass(frozen=True, slots=True)
class Onset:
    """When one signal of one layer left its usual range, and by how much."""

    step: int
    signal: str
    layer: str
    """Empty for a signal of the whole run, such as the loss."""
    factor: float

    def __str__(self) -> str:
        what = f"{self.layer} {self.signal}" if self.layer else self.signal
        return f"{what} ×{self.factor:.3g} at step {self.step}"


@dataclass(frozen=True)
class Diagnosis:
    """Findings, most important first; each holds under `consequences` what follows from it."""

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    """What could not be looked at, and why."""
    checked: tuple[str, ...]
    """Names of the checks that looked."""
    healthy: bool | None
    """True only if nothing is above INFO and loss and gradients were seen; None is "unknown"."""
    timeline: tuple[Onset, ...] = ()
    """In which order signals left their usual range, when the run lost its stability."""
    steps: int = 0
    layers: int = 0
    name: str = ""

    @property
    def worst(self) -> Severity | None:
        """The highest severity of all findings."""
        return max((item.severity for item in self.findings), default=None)

    @property
    def verdict(self) -> str:
        """healthy, sick or unknown."""
        return {True: "healthy", False: "sick", None: "unknown"}[self.healthy]

    def everything(self) -> Iterator[Finding]:
        """All findings, consequences included."""
        for finding in self.findings:
            yield finding
            yield from finding.consequences

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of this severity or above."""
        return tuple(item for item in self.findings if item.severity >= severity)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with a format number."""
        return {
            "format": FORMAT,
            "run": self.name,
            "verdict": self.verdict,
            "healthy": self.healthy,
            "steps": self.steps,
            "layers": self.layers,
            "findings": [item.to_dict() for item in self.findings],
            "timeline": [
                {"step": o.step, "signal": o.signal, "layer": o.layer, "factor": o.factor}
                for o in self.timeline
            ],
            "skipped": [{"check": item.check, "reason": item.reason} for item in self.skipped],
            "checked": list(self.checked),
        }

    def _repr_html_(self) -> str:
        """A heading, a list of findings, a folded list of what was skipped."""
        shown = "".join(_html_item(finding) for finding in self.findings[:MOST_FOLLOWING])
        more = len(self.findings) - MOST_FOLLOWING
        tail = f"<p>{more} more findings</p>" if more > 0 else ""
        if self.skipped:
            reasons = (f"{markup(s.check, 60)}: {markup(s.reason, SENTENCE)}" for s in self.skipped)
            tail += details(f"{len(self.skipped)} checks could not look", items(reasons))
        return f"<div><b>{markup(self.verdict, SENTENCE)}</b><ul>{shown}</ul>{tail}</div>"


def _html_item(finding: Finding) -> str:
    follows = "".join(_html_item(item) for item in finding.consequences[:MOST_FOLLOWING])
    advice = f"<br><i>{markup(finding.advice[0], SENTENCE)}</i>" if finding.advice else ""
    return f"<li>{finding.html_line()}{advice}{f'<ul>{follows}</ul>' if follows else ''}</li>"
