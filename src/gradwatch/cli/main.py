"""The `gradwatch` program: a table of commands, each imported when it is used."""

import io
import os
import re
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from gradwatch.cli.help import examples
from gradwatch.errors import Exit, GradwatchError
from gradwatch.text import cut, nearest, plain
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

DEBUG = "GRADWATCH_DEBUG"
"""Set to anything: the traceback of a fault is shown too."""


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
    sys.stdout, sys.stderr = _unbroken(sys.stdout), _unbroken(sys.stderr)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:  # lines of source are for who asked for them
                warnings.simplefilter("ignore")
            code = gradwatch.main(arguments, prog_name="gradwatch", standalone_mode=False)
        sys.stdout.flush()
    except GradwatchError as error:
        _end(f"gradwatch: {plain(str(error))}", error.exit_code)
    except click.ClickException as error:
        text = io.StringIO()
        context = error.ctx if isinstance(error, click.UsageError) else None
        click.UsageError(plain(error.format_message()), context).show(text)
        # click repeats what was typed; in a URL there may be a password
        _end(re.sub(r"(\w://)\S*", r"\1…", text.getvalue()).rstrip("\n"), Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:  # no traceback ever: exit code 1 means a finding
        if os.environ.get(DEBUG):
            for line in traceback.format_exc().splitlines():
                click.echo(plain(line), err=True)
        _end(f"gradwatch: {plain(_fault(error))}", Exit.UNREADABLE)
    sys.exit(code if isinstance(code, int) else 0)


def _end(sentence: str, code: Exit) -> NoReturn:
    click.echo(sentence, err=True)
    sys.exit(code)


def _fault(error: Exception) -> str:
    """What to say of an error that nobody foresaw."""
    if isinstance(error, MemoryError):
        return (
            "Expected what fits into the memory of this machine, got more. Ask for less of it, or "
            "close other programs."
        )
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"Could not read or write{where}: {error.strerror}. Check the disk and your rights."
    return (
        f"Expected an answer, got a fault of gradwatch ({type(error).__name__}: "
        f"{cut(str(error), 200)}). The input may be damaged; please report it, with what "
        f"{DEBUG}=1 shows."
    )


class _Pipe(io.FileIO):
    """A stream whose reader may leave before all is said (`… | head`): the rest goes nowhere."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if not (isinstance(error, BrokenPipeError) or self.fileno() == 2):
                raise  # a full disk is said on standard error; there it can only be borne
            return len(data)


def _unbroken(stream: TextIO | None) -> TextIO:
    """The same, but no reader that leaves and no letter that it cannot write ends the command."""
    if stream is None:  # closed by who started us
        return Path(os.devnull).open("w", encoding="utf-8")
    own = stream in (sys.__stdout__, sys.__stderr__)
    if not own:  # but somebody's, such as a test's
        return stream
    pipe = io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(
        pipe, stream.encoding, "backslashreplace", line_buffering=bool(stream.line_buffering)
    )
