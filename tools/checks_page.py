"""`docs/checks.md`, made from the docstrings of the checks: `python -m tools.checks_page`."""

from gradwatch.checks import CHECKS
from gradwatch.checks.explain import body, measured, settings, summary

_HEAD = """# The checks

One section for each check: what is seen, why it hurts, what helps, and where its thresholds
come from. `gradwatch explain NAME` prints the same text. This page is generated from the docstrings
by `python -m tools.checks_page`; change them, not it.
"""


def page() -> str:
    """All checks as one Markdown page."""
    parts = [_HEAD, ""]
    parts += [f"- [{check.NAME}](#{check.NAME}): {summary(check)}" for check in CHECKS]
    parts += [
        f"\n## {check.NAME}\n\n{body(check)}\n\n{settings(check)}\n\n{measured(check.NAME)}"
        for check in CHECKS
    ]
    return "\n".join(part.rstrip() for part in parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
