"""Advice that fits the run and does not contradict itself within one answer.

Checks write what helps in general. Here that is held against what is known: the optimizer, its
learning rate, whether gradients are clipped; and "raise the learning rate" goes where the headline
says "lower it", or the other way round.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gradwatch.checks.logged import adaptive
from gradwatch.finding import Finding
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number

_LOWER = re.compile(r"\blower the learning rate", re.IGNORECASE)
_RAISE = re.compile(r"\braise the learning rate", re.IGNORECASE)
_RATE = re.compile(r"\b((?:lower|raise) the learning rate)(?! of)", re.IGNORECASE)
_CLIP = re.compile(r"\bclip the gradient norm(?: to about 1)?", re.IGNORECASE)
_USE_ADAM = re.compile(r"^(try|use) adam\b", re.IGNORECASE)
_OF_ADAM = re.compile(r" or Adam's β2")


def fitting(findings: Sequence[Finding], run: Run) -> tuple[Finding, ...]:
    """The findings, with advice that suits this run and goes one way."""
    contrary = _contrary(findings)
    known = _known(run)

    def fitted(finding: Finding) -> Finding:
        kept = [text for text in finding.advice if not (contrary and contrary.search(text))]
        told = [known(text) for text in kept]
        follows = tuple(fitted(item) for item in finding.consequences)
        return replace(finding, advice=tuple(filter(None, told)), consequences=follows)

    return tuple(fitted(finding) for finding in findings)


def _contrary(findings: Sequence[Finding]) -> re.Pattern[str] | None:
    """What nobody may advise: the opposite of the first word on the learning rate."""
    for finding in findings:
        for item in (finding, *finding.consequences):
            for text in item.advice:
                if _LOWER.search(text):
                    return _RAISE
                if _RAISE.search(text):
                    return _LOWER
    return None


def _known(run: Run) -> Callable[[str], str]:
    """A sentence as it is for this run; empty where nothing of it applies."""
    adam, sgd = adaptive(run), str(run.info.get("optimizer", "")) == "SGD"
    rate, clipped = _rate(run), _clipped(run)

    def told(text: str) -> str:
        if adam:
            parts = [part for part in text.split("; ") if not _USE_ADAM.match(part)]
            text = "; ".join(parts)
            text = text[:1].upper() + text[1:]
        if sgd:
            text = _OF_ADAM.sub("", text)
        if clipped:
            text = _CLIP.sub(
                lambda found: f"{found[0][0]}lip the gradient norm lower than now", text
            )
        if rate:
            text = _RATE.sub(rf"\1 ({rate})", text, count=1)
        return text

    return told


def _rate(run: Run) -> str:
    """The recorded learning rate in words; empty where there is none, or several."""
    rates = run.series[Stat.LR] if Stat.LR in run.recorded else np.zeros((0, 0))
    rates = rates[np.isfinite(rates).all(axis=1)]
    if not rates.size or not rates.max() > 0 or (rates != rates[:, :1]).any():
        return ""
    return f"{'it is' if np.ptp(rates) == 0 else 'at most'} {number(float(rates.max()))}"


def _clipped(run: Run) -> bool:
    factors = run.scalars.get("clip_factor")
    return factors is not None and bool(np.nanmean(np.nan_to_num(factors, nan=1.0) < 1) > 0.1)
