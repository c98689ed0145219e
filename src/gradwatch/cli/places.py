"""Arguments that name a run or a folder of runs: a path of this machine, a URL, a run's name."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from gradwatch.store.places import Place, is_url
from gradwatch.store.runs import find_run, is_run
from gradwatch.text import plain

HOME = Place.of("runs")
"""Where `watch` puts runs unless told otherwise."""


class PlaceArgument(click.Path):
    """Gives the command a `Place`, which shows itself without the credentials of a URL."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """Make it of what was typed; a URL that nothing here can open is refused."""
        return Place.of(value)


class RunArgument(click.Path):
    """A run by its folder, its URL, its name or a part of it; left out, the newest, and says so."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """Find the run; where it was not named whole, say which one was taken."""
        place = find_run(value, HOME)
        if not is_url(value) and (not value or place not in (HOME / value, Place.of(value))):
            what = "Taking" if value else "Taking the newest run,"
            click.echo(f"{what} {plain(str(place))}.", err=True)
        return place

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names of the runs that begin so, and folders."""
        names = [n for n in HOME.folders() if n.startswith(incomplete) and is_run(HOME / n)]
        # bash lets folders win over names as soon as both are offered
        listed = [CompletionItem(name) for name in sorted(names)]
        return listed or super().shell_complete(ctx, param, incomplete)


def run_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument RUN of every command that reads one."""
    return click.argument("run", type=RunArgument(), default="", metavar="[RUN]")(command)
