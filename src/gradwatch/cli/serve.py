"""`gradwatch serve`: the live page."""

import click

from gradwatch.cli.help import examples
from gradwatch.cli.places import HOME, PlaceArgument
from gradwatch.errors import Exit, GradwatchError
from gradwatch.store.places import Place
from gradwatch.store.runs import find_run


@click.command(
    "serve",
    short_help="Show runs on a live page in the browser.",
    epilog=examples("gradwatch serve", "gradwatch serve runs ../other/runs --port 8080"),
)
@click.argument("runs", type=PlaceArgument(), nargs=-1)
@click.option("--host", default="localhost", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0 takes any free one.")
@click.option("--allow-remote", is_flag=True, help="Let --host be one other machines can reach.")
def command(runs: tuple[Place, ...], host: str, port: int | None, allow_remote: bool) -> None:
    """Serve a live page of the runs in RUNS (folders of runs, or runs; `runs` by default).

    Prints a link that works once; Enter prints a new one. The page only reads; the training is
    not touched.
    """
    from gradwatch.server.serving import Address, has_terminal, serve

    roots = [
        run if run.remote or run.exists() else find_run(str(run), HOME) for run in runs or [HOME]
    ]
    for root in roots:
        if not root.exists():
            raise GradwatchError(
                f"Expected a folder of runs at {root}, found none. Name one: gradwatch serve DIR.",
                Exit.UNREADABLE,
            )
    address = Address.checked(host, port, allow_remote=allow_remote)
    if address.caution:
        click.echo(address.caution, err=True)
    new = "Enter prints a new one" if has_terminal() else "restart for a new one"
    click.echo(f"Open this link, which works once ({new}, Ctrl-C ends the server):", err=True)
    serve(roots, address, click.echo)
