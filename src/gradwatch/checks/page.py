"""The checks' docstrings as documentation: `python -m gradwatch.checks.page docs/checks.md`."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from gradwatch.checks import CHECKS, Check
from gradwatch.checks.figures import CHECK_FIGURES, HEALTHY_RUNS

_HEAD = """# The checks

One section for each check: what is seen, why it hurts, what helps, and where its thresholds
come from. `gradwatch explain NAME` prints the same text. This page is generated from the docstrings
by `python -m gradwatch.checks.page docs/checks.md`; change them, not it.
"""


def summary(check: Check) -> str:
    """The first line of a check's documentation."""
    return (check.__doc__ or "").strip().partition("\n")[0]


def text(check: Check) -> str:
    """A check's whole page in plain text."""
    body = inspect.cleandoc(check.__doc__ or "")
    return f"{check.NAME}\n\n{body}\n\n{settings(check)}\n{measured(check.NAME)}".rstrip()


def settings(check: Check) -> str:
    """The thresholds and their defaults, read off the signature."""
    keywords = [
        f"{name}={value.default}"
        for name, value in inspect.signature(check.check).parameters.items()
        if value.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return f"Settings: {', '.join(keywords)}." if keywords else "Settings: none."


def measured(name: str) -> str:
    """False alarms and hits on the zoo's reported half, kept beside this module."""
    row = CHECK_FIGURES.get(name)
    if row is None:
        return ""
    alarms, found, sick = row
    line = f"Measured on the zoo: a warning in {alarms} of {HEALTHY_RUNS} healthy runs"
    return f"{line}; found in {found} of {sick} runs that have it." if sick else f"{line}."


def page(checks: Sequence[Check] = CHECKS) -> str:
    """All checks as one Markdown page."""
    parts = [_HEAD, ""]
    parts.extend(f"- [{c.NAME}](#{c.NAME}): {summary(c)}" for c in checks)
    for check in checks:
        body = inspect.cleandoc(check.__doc__ or "")
        parts.append(f"\n## {check.NAME}\n\n{body}\n\n{settings(check)}\n\n{measured(check.NAME)}")
    return "\n".join(part.rstrip() for part in parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page(), "utf-8")
    else:
        sys.stdout.write(page())
