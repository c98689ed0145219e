"""Which samples a finding's first step was fed with, where the training logged their ids."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gradwatch.finding import Finding


def with_batches(findings: Iterable[Finding], info: Mapping[str, Any]) -> list[Finding]:
    """The findings, each with the ids of its first step if they were kept (the last 64 steps)."""
    known = _known(info)
    return [
        replace(finding, batch=known[finding.first_step])
        if finding.first_step in known
        else finding
        for finding in findings
    ]


def _known(info: Mapping[str, Any]) -> dict[int, tuple[int | str, ...]]:
    """By step; files are not trusted, so what has another form is left out."""
    listed = info.get("batches")
    pairs = list(listed) if isinstance(listed, list) else []
    bad = info.get("bad_batch")
    if isinstance(bad, Mapping):
        pairs.append([bad.get("step"), bad.get("ids")])
    return {
        pair[0]: tuple(one for one in pair[1] if isinstance(one, int | str))
        for pair in pairs
        if isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], int)
        and isinstance(pair[1], list)
    }
