"""Arguments that name a run or a folder of runs: a path of this machine, or a URL."""

from typing import Any

import click

from gradwatch.store.places import Place


class PlaceArgument(click.Path):
    """Gives the command a `Place`, which shows itself without the credentials of a URL."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """Make it of what was typed; a URL that nothing here can open is refused."""
        return Place.of(value)
