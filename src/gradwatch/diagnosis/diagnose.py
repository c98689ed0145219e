"""`diagnose(run)`: every check looks, and what follows from one root is folded under it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.checks import CHECKS, Check
from gradwatch.diagnosis.diagnosis import Diagnosis
from gradwatch.diagnosis.folding import fold
from gradwatch.diagnosis.timeline import timeline
from gradwatch.finding import Finding, Severity, Skipped
from gradwatch.run import Run
from gradwatch.stats import Stat

_HINTS = {
    "loss": "the loss was not logged: add watcher.log(loss=loss) to the training loop",
    "val_loss": "no validation loss was logged: watcher.log(val_loss=…)",
    "skipped": "no gradient scaler was seen in this training",
    "clip_factor": "it could not be told whether gradients were clipped",
    "stale": "it could not be told what gradients were before backward",
    "input_rms": "the model was fed no floating point numbers that could be read",
    Stat.OPTIM_RATIO_RMS: "the optimizer keeps no second moments, as Adam does",
    Stat.OPTIM_EPS_FRACTION: "the optimizer keeps no second moments, as Adam does",
    Stat.ACT_FLAT_FRACTION: "no tanh or sigmoid was seen, or activations were not recorded",
    Stat.GRAD_DEAD_ROWS: "rows of gradients were not followed in this run",
}


def diagnose(run: Run, checks: Iterable[Check] = CHECKS) -> Diagnosis:
    """What is wrong, since when, where it began, what to try; and what could not be seen."""
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    checked: list[str] = []
    for check in checks:
        missing = _missing(run, check.NEEDS)
        if missing:
            skipped.append(Skipped(check.NAME, missing))
            continue
        outcome = _outcome(check, run)
        reasons = [item for item in outcome if isinstance(item, Skipped)]
        skipped.extend(reasons)
        findings.extend(item for item in outcome if isinstance(item, Finding))
        if not reasons:
            checked.append(check.NAME)
    folded = fold(with_batches(findings, run.info), run.graph, len(run.steps))
    return Diagnosis(
        findings=folded,
        skipped=tuple(skipped),
        checked=tuple(checked),
        healthy=_healthy(run, folded),
        timeline=timeline(run, folded[0] if folded else None),
        steps=len(run.steps),
        layers=len(run.layers),
        name=str(run.info.get("name", "")),
    )


def _outcome(check: Check, run: Run) -> list[Finding | Skipped]:
    """What one check yields; an error inside it must not cost the others."""
    try:
        with np.errstate(all="ignore"):  # overflow and 0/0 are data here, not mistakes
            return list(check.check(run))
    except Exception as error:
        return [Skipped(check.NAME, f"the check itself failed: {type(error).__name__}: {error}")]


def _missing(run: Run, needs: frozenset[str]) -> str:
    """Why a check cannot look; empty when it can."""
    recorded = run.recorded | run.scalars.keys()
    absent = sorted(str(need) for need in needs if need not in recorded)
    if not absent:
        return ""
    return _HINTS.get(absent[0], f"not recorded: {', '.join(absent)}")


def _healthy(run: Run, findings: tuple[Finding, ...]) -> bool | None:
    if any(item.severity > Severity.INFO for item in findings):
        return False
    seen = "loss" in run.scalars and Stat.GRAD_NORM in run.recorded and len(run.steps) > 0
    return True if seen else None


def with_batches(findings: Iterable[Finding], info: Mapping[str, Any]) -> list[Finding]:
    """The findings, each with the ids of the samples of its first step, where they were logged."""
    batches = _batches(info)
    return [
        replace(finding, batch=batches[finding.first_step])
        if finding.first_step in batches
        else finding
        for finding in findings
    ]


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
