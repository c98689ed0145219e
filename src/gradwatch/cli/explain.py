"""`gradwatch explain`: the page of a check."""

import difflib

import click

from gradwatch.checks import CHECKS
from gradwatch.checks.explain import summary, text
from gradwatch.errors import Exit, GradwatchError


@click.command("explain")
@click.argument("check", required=False)
def command(check: str | None) -> None:
    """Print what CHECK looks for, why it hurts and what helps; without CHECK, the list."""
    pages = {item.NAME: item for item in CHECKS}
    if check is None:
        for name, item in pages.items():
            click.echo(f"{name:<24} {summary(item)}")
        return
    if check not in pages:
        near = difflib.get_close_matches(check, pages, n=3) or sorted(pages)
        raise GradwatchError(
            f"There is no check {check!r}. Did you mean {', '.join(near)}?", Exit.USAGE
        )
    click.echo(text(pages[check]))
