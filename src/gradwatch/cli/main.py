"""The `gradwatch` program: a table of commands, each imported when it is used."""

import io
import re
import sys
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from gradwatch.cli.help import examples
from gradwatch.errors import Exit, GradwatchError
from gradwatch.text import nearest, plain
from gradwatch.version import __version__
from gradwatch.views.console import coloured

COMMANDS: dict[str, str] = {
    "show": "gradwatch.cli.show",
    "diagnose": "gradwatch.cli.diagnose",
    "explain": "gradwatch.cli.explain",
    "zoo": "gradwatch.cli.zoo",
    "analyze": "gradwatch.cli.analyze",
    "report": "gradwatch.cli.report",
    "serve": "gradwatch.cli.serve",
    "weights": "gradwatch.cli.weights",
    "drift": "gradwatch.cli.drift",
    "animate": "gradwatch.cli.animate",
    "export": "gradwatch.cli.export",
    "runs": "gradwatch.cli.runs",
    "mcp": "gradwatch.cli.mcp",
    "doctor": "gradwatch.cli.doctor",
    "completion": "gradwatch.cli.completion",
}


class Commands(click.Group):
    """Imports a command's module only when it is run or described."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help text, without importing anything."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed, or say which ones are like it."""
        if args[0] not in COMMANDS and not (args[0].startswith("-") or ctx.resilient_parsing):
            like = nearest(args[0], COMMANDS)
            ctx.fail(f"There is no command {plain(args[0])!r}. Did you mean {like}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin so; no command is imported only to be named."""
        names = [CompletionItem(name) for name in COMMANDS if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("gradwatch diagnose", "gradwatch show my-run"),
)
@click.version_option(__version__, prog_name="gradwatch")
@click.pass_context
def gradwatch(ctx: click.Context) -> None:
    """Finds out why a neural network does not train, and names the layer and the step."""
    ctx.color = coloured()  # click itself asks only whether it is a terminal


def main(arguments: list[str] | None = None) -> None:
    """Run the program; only here are errors printed and turned into exit codes."""
    try:
        code = gradwatch.main(arguments, prog_name="gradwatch", standalone_mode=False)
    except GradwatchError as error:
        click.echo(f"gradwatch: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        # click repeats what was typed; in a URL there may be a password
        click.echo(re.sub(r"(\w://)\S*", r"\1…", text.getvalue()), err=True, nl=False)
        sys.exit(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `gradwatch … | head`: Python would complain once more when it exits
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
