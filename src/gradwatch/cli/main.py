"""The `gradwatch` program: a table of commands, each imported when it is used."""

import io
import re
import sys
from importlib import import_module

import click

from gradwatch.errors import Exit, GradwatchError
from gradwatch.version import __version__

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradwatch")
def gradwatch() -> None:
    """Finds out why a neural network does not train, and names the layer and the step."""


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
