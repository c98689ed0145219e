"""`gradwatch explain`: the page of a check."""

from textwrap import fill

import click

from gradwatch.checks import CHECKS
from gradwatch.checks.explain import summary, text
from gradwatch.cli.help import examples
from gradwatch.errors import Exit, GradwatchError
from gradwatch.text import nearest, plain
from gradwatch.views.console import prose_width


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [check.NAME for check in CHECKS if check.NAME.startswith(incomplete)]


@click.command(
    "explain",
    short_help="Say what a check looks for, why it hurts, what helps.",
    epilog=examples("gradwatch explain", "gradwatch explain vanishing-gradient"),
)
@click.argument("check", required=False, shell_complete=_names)
def command(check: str | None) -> None:
    """Print what CHECK looks for, why it hurts and what helps; without CHECK, the list."""
    click.echo(page(check))


def page(check: str | None) -> str:
    """A check's page; without a check, the list of them."""
    pages = {item.NAME: item for item in CHECKS}
    if check is None:
        longest = max(map(len, pages)) + 2
        return "\n".join(
            fill(
                f"{name:<{longest}}{summary(item)}",
                prose_width(),
                subsequent_indent=" " * longest,
                break_on_hyphens=False,
            )
            for name, item in pages.items()
        )
    if check not in pages:
        raise GradwatchError(
            f"There is no check {plain(check)!r}. Did you mean {nearest(check, pages)}? "
            "`gradwatch explain` lists them all.",
            Exit.USAGE,
        )
    return text(pages[check])
