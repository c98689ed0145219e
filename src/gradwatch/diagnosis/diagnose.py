"""`diagnose(run)`: every check looks, and what follows from one root is folded under it.

The result is a `Diagnosis`: findings, what could not be looked at, and the order of events.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks import Check, checks_for, weights_only
from gradwatch.checks.bearable import severity
from gradwatch.checks.check import ELEMENTS
from gradwatch.checks.context import context
from gradwatch.checks.logged import held_out_losses, is_loss, losses, rises
from gradwatch.checks.not_learning import settled
from gradwatch.checks.tensors import has_elements
from gradwatch.diagnosis.advice import fitting
from gradwatch.diagnosis.folding import fold, importance
from gradwatch.errors import GradwatchError
from gradwatch.finding import MOST_FOLLOWING, SENTENCE, Finding, Severity, Skipped
from gradwatch.notebook import details, items
from gradwatch.run import Run, as_run
from gradwatch.stats import Kind, Stat
from gradwatch.stats.medians import Array, medians
from gradwatch.text import many, markup, several

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
    """True only if nothing is above INFO and loss and gradients were seen (of a checkpoint: any
    weight); None is "unknown"."""
    timeline: tuple[Onset, ...] = ()
    """In which order signals left their usual range, when the run lost its stability."""
    steps: int = 0
    """Steps that the optimizer has made."""
    layers: int = 0
    name: str = ""
    reason: str = ""
    """Why the verdict is unknown, where it is."""

    @property
    def worst(self) -> Severity | None:
        """The highest severity of all findings."""
        return max((item.severity for item in self.findings), default=None)

    @property
    def verdict(self) -> str:
        """healthy, notes (nothing worse was found), sick or unknown: the word every door shows."""
        if self.healthy is None:
            return "unknown"
        if not self.healthy:
            return "sick"
        return "notes" if self.counts["notes"] else "healthy"

    @property
    def counts(self) -> dict[str, int]:
        """What was found, as every door counts it; what follows from a finding is part of it."""
        findings = len(self.at_least(Severity.WARNING))
        return {"findings": findings, "notes": len(self.findings) - findings}

    @property
    def counted(self) -> str:
        """`no finding`, `1 finding, 2 notes`."""
        return counted(**self.counts)

    @property
    def line(self) -> str:
        """What was found in how much; where the verdict is unknown, why."""
        seen = f"{self.counted} in {many(self.layers, 'layer')}, {many(self.steps, 'step')}"
        return f"{seen}; {self.reason}" if self.reason else seen

    @property
    def unseen(self) -> str:
        """`9 checks had nothing to look at`; empty where all could look."""
        count = len({item.check for item in self.skipped})
        return f"{many(count, 'check')} had nothing to look at" if count else ""

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
            "reason": self.reason,
            "counts": self.counts,
            "steps": self.steps,
            "layers": self.layers,
            "findings": [item.to_dict() for item in self.findings],
            "timeline": [asdict(onset) for onset in self.timeline],
            "skipped": [asdict(item) for item in self.skipped],
            "checked": list(self.checked),
        }

    def _repr_html_(self) -> str:
        """A heading, a list of findings, a folded list of what was skipped."""
        shown = "".join(_html_item(finding) for finding in self.findings[:MOST_FOLLOWING])
        more = len(self.findings) - MOST_FOLLOWING
        tail = f"<p>{more} more findings</p>" if more > 0 else ""
        if self.skipped:
            reasons = (f"{markup(s.check, 60)}: {markup(s.reason, SENTENCE)}" for s in self.skipped)
            tail += details(self.unseen, items(reasons))
        head = f"<b>{self.verdict}</b>: {markup(self.line, SENTENCE)}"
        return f"<div>{head}<ul>{shown}</ul>{tail}</div>"


def counted(*, findings: int, notes: int) -> str:
    """`no finding`, `1 finding, 2 notes`."""
    found = many(findings, "finding") if findings else "no finding"
    return f"{found}, {many(notes, 'note')}" if notes else found


def _html_item(finding: Finding) -> str:
    follows = "".join(_html_item(item) for item in finding.consequences[:MOST_FOLLOWING])
    advice = f"<br><i>{markup(finding.advice[0], SENTENCE)}</i>" if finding.advice else ""
    return f"<li>{finding.html_line()}{advice}{f'<ul>{follows}</ul>' if follows else ''}</li>"


_NO_MOMENTS = "neither updates nor what the optimizer keeps were recorded"
_HINTS = {
    "loss": "no loss was logged: add watcher.log(loss=loss) to the training loop",
    "val_loss": "no validation loss was logged: watcher.log(val_loss=…)",
    "clip_factor": "it could not be told whether gradients were clipped",
    "stale": "it could not be told what gradients were before backward",
    "input_rms": "the model was fed no floating point numbers that could be read",
    "output_spread": "the model's output could not be read",
    "predicted_share": "the model's output could not be read",
    "batch_fingerprint": "the batches could not be compared: they are on a device, or hidden",
    Stat.OPTIM_RATIO_RMS: _NO_MOMENTS,
    Stat.OPTIM_EPS_FRACTION: _NO_MOMENTS,
    Stat.ACT_FLAT_FRACTION: "activations were not recorded",
    Stat.GRAD_DEAD_ROWS: "rows of gradients were not followed in this run",
    Stat.WEIGHT_ROW_SPREAD: "rows of weights were not compared; a scan of the file does",
    ELEMENTS: (
        "this run keeps only statistics of its weights: hand the arrays to analyze_weights, or "
        "scan the file"
    ),
}


_FOREIGN: Mapping[str, Callable[[Run], bool]] = {
    "skipped": lambda run: True,  # marked on every step as soon as a scaler is seen
    "predicted_share": lambda run: "output_spread" in run.scalars,  # no classes are predicted
    "input_rms": lambda run: bool(context(run).embeddings.any()),  # fed with numbers of tokens
    Stat.OPTIM_RATIO_RMS: lambda run: Stat.UPDATE_NORM in run.recorded,
    Stat.OPTIM_EPS_FRACTION: lambda run: Stat.UPDATE_NORM in run.recorded,
    Stat.ACT_FLAT_FRACTION: lambda run: Stat.ACT_STD in run.recorded,
}
"""What a training may lack because it has no use for it: then the check does not concern it."""


def diagnose(run: Any, checks: Iterable[Check] | None = None) -> Diagnosis:
    """What is wrong, since when, where it began, what to try; and what could not be seen.

    `run` may also be norms or arrays by name, as `Run.from_norms` and `Run.from_arrays` take them.
    Unless `checks` are given, those look that concern it: a training's, or those of weights.
    """
    run = as_run(run)
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    checked: list[str] = []
    for check in checks_for(run) if checks is None else checks:
        missing = _missing(run, check.NEEDS)
        if missing:
            if not any(_FOREIGN[need](run) for need in missing if need in _FOREIGN):
                hint = _HINTS.get(missing[0], f"not recorded: {', '.join(missing)}")
                skipped.append(Skipped(check.NAME, hint))
            continue
        outcome = _outcome(check, run)
        reasons = [item for item in outcome if isinstance(item, Skipped)]
        skipped.extend(reasons)
        findings.extend(item for item in outcome if isinstance(item, Finding))
        if not reasons:
            checked.append(check.NAME)
    if weights_only(run):  # nothing follows from anything: each tensor has its own faults
        folded = tuple(sorted(findings, key=importance))
    else:
        degrees = {finding.message: finding.severity for finding in findings}
        findings = settled([_as_borne(run, finding) for finding in findings], checked)
        findings = [_of_steps_made(finding, run.last_step) for finding in findings]
        folded = fitting(fold(with_batches(findings, run.info), run, degrees), run)
    healthy, reason = _healthy(run, folded, skipped)
    return Diagnosis(
        findings=folded,
        skipped=tuple(skipped),
        checked=tuple(checked),
        healthy=healthy,
        timeline=timeline(run, folded[0] if folded else None),
        steps=run.step_count,
        layers=len(run.layers),
        name=str(run.info.get("name", "")),
        reason=reason,
    )


_BLIND = ("could not look", "the check itself failed")
"""What keeps a run from being called healthy, other than what was not recorded."""


def _outcome(check: Check, run: Run) -> list[Finding | Skipped]:
    """What one check yields; an error inside it must not cost the others."""
    try:
        with np.errstate(all="ignore"):  # overflow and 0/0 are data here, not mistakes
            return list(check.check(run))
    except GradwatchError as error:  # a series that cannot be read
        return [Skipped(check.NAME, f"{_BLIND[0]}: {error}")]
    except Exception as error:
        return [Skipped(check.NAME, f"{_BLIND[1]}: {type(error).__name__}: {error}")]


def _as_borne(run: Run, finding: Finding) -> Finding:
    """The finding, as grave as it is in a training that turned out as this one did."""
    grave = severity(context(run), finding)
    return finding if grave is finding.severity else replace(finding, severity=grave)


def _of_steps_made(finding: Finding, last: int) -> Finding:
    """The finding, on steps that were made: what the weights show after the last step is its."""
    if finding.last_step <= last or last < 0:
        return finding
    return replace(finding, first_step=min(finding.first_step, last), last_step=last)


def _missing(run: Run, needs: frozenset[str]) -> list[str]:
    """What a check needs and the run does not have; empty when it can look."""
    recorded = run.recorded | run.scalars.keys() | ({ELEMENTS} if has_elements(run) else set())
    recorded |= {"loss"} if losses(run.scalars) else set()  # by whatever name
    recorded |= {"val_loss"} if held_out_losses(run.scalars) else set()
    return sorted(str(need) for need in needs if need not in recorded)


def _healthy(
    run: Run, findings: tuple[Finding, ...], skipped: Iterable[Skipped]
) -> tuple[bool | None, str]:
    """Whether the run is healthy; None, and why, where that cannot be said."""
    if any(item.severity > Severity.INFO for item in findings):
        return False, ""
    if weights_only(run):
        seen = bool(len(run.measured_rows(Stat.WEIGHT_NORM)))
        return (True, "") if seen else (None, "no weight could be read")
    if blind := {item.check for item in skipped if item.reason.startswith(_BLIND)}:
        return None, f"{several(sorted(blind))} could not look"
    if not run.step_count:
        why = (item.reason for item in skipped if item.check == "no-optimizer-step")
        return None, next(why, "no optimizer step was recorded")
    if Stat.GRAD_NORM not in run.recorded:
        return None, "no gradients were recorded"
    told = any(is_loss(name) or rises(name) for name in run.scalars)
    return (True, "") if told else (None, _HINTS["loss"])


def with_batches(findings: Iterable[Finding], info: Mapping[str, Any]) -> list[Finding]:
    """The findings, each with the ids of the samples of its first step, where they were logged."""
    batches = _batches(info)
    return [replace(item, batch=batches.get(item.first_step, item.batch)) for item in findings]


def _batches(info: Mapping[str, Any]) -> dict[int, tuple[int | str, ...]]:
    """By step; files are not trusted, so what has another form is left out."""
    listed = info.get("batches")
    pairs = list(listed) if isinstance(listed, list) else []
    bad = info.get("bad_batch")
    if isinstance(bad, Mapping):
        pairs.append([bad.get("step"), bad.get("ids")])
    batches: dict[int, tuple[int | str, ...]] = {}
    for pair in pairs:
        match pair:
            case [int(step), list(ids)]:
                batches[step] = tuple(sample for sample in ids if isinstance(sample, int | str))
    return batches


UNSTABLE = frozenset(
    {"loss-spike", "divergence", "nonfinite", "exploding-gradient", "gradient-spikes"}
)
SIGNALS = ((Stat.UPDATE_NORM, "update"), (Stat.GRAD_NORM, "gradient"), (Stat.ACT_STD, "outputs"))


BEFORE, AFTER, WINDOW = 40, 10, 60
"""Steps around the fault in which signals are looked at, and samples before that are usual."""


def timeline(run: Run, root: Finding | None, *, times: float = 3.0) -> tuple[Onset, ...]:
    """For an unstable run: when signals left their usual range for good, up to the fault.

    That is `times` all of what it was before, beyond its own scatter; at most two layers each.
    """
    findings = [root, *root.consequences] if root is not None else []
    unstable = [
        item.first_step
        for item in findings
        if item.check in UNSTABLE and item.severity > Severity.INFO
    ]
    ctx = context(run)
    if not unstable or ctx.loss is None:
        return ()
    fault, onsets = min(unstable), []
    for stat, word in SIGNALS:
        rows = ctx.rows(stat)
        rows = rows[np.abs(ctx.steps[rows] - fault) <= BEFORE + WINDOW * ctx.stride(stat)]
        values = ctx.values(stat, rows)
        if stat.kind is Kind.PARAMETER:
            values[:, ~ctx.weights] = np.nan
        names = [subject.layer or subject.name for subject in run.by_kind[stat.kind]]
        found = _departures(ctx.steps[rows], values, fault, times)
        onsets += [Onset(step, word, names[c], factor) for step, c, factor in found[:2]]
    loss = _departures(ctx.loss.steps, ctx.loss.values[:, None], fault, times)
    onsets += [Onset(step, "loss", "", factor) for step, _, factor in loss]
    return tuple(sorted(onsets, key=lambda onset: (onset.step, -onset.factor)))


def _departures(
    steps: NDArray[np.int64], values: Array, fault: int, times: float
) -> list[tuple[int, int, float]]:
    """(step, column, factor) of columns that leave their range, the earliest first.

    One that has left it when the fault comes did so where that stretch began; what was high
    before and came back is noise. Others may follow within a few steps.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.where(values > 0, values, np.nan))
    usual = logs[steps < fault - BEFORE][-WINDOW:]
    near = np.flatnonzero((steps >= fault - BEFORE) & (steps <= fault + AFTER))
    if len(usual) < 10 or not len(near):
        return []
    middle = medians(usual)
    scatter = 1.48 * medians(np.abs(usual - middle))
    above = logs[near] - middle
    highest = np.fmax.reduce(usual, axis=0) - middle  # what learning alone lets grow is no event
    high = above > np.maximum(np.log(times) + highest, 5 * scatter)
    before = steps[near] <= fault
    within = ~high & before[:, None]
    begin = np.where(within.any(axis=0), len(near) - within[::-1].argmax(axis=0), 0)
    left = high & (np.arange(len(near))[:, None] >= begin)
    first = left.argmax(axis=0)
    columns = np.flatnonzero(left.any(axis=0))
    columns = columns[np.lexsort((-above[first[columns], columns], first[columns]))]
    return [
        (int(steps[near[first[c]]]), c, float(np.exp(above[first[c], c]))) for c in columns.tolist()
    ]
