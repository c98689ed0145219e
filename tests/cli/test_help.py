"""`--help` of every command: a line in the list, two examples that work."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gradwatch.checks import CHECKS
from gradwatch.cli.help import examples
from gradwatch.cli.main import COMMANDS, gradwatch
from gradwatch.zoo import families


def every(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command, and those below it, with how they are called."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, help_option_names=["-h", "--help"])
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every(below, *path, name)


ALL = dict(every(gradwatch))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_two_examples_that_can_be_typed(path: tuple[str, ...]) -> None:
    text = CliRunner().invoke(gradwatch, [*path, "--help"], env={"COLUMNS": "80"}).stdout
    _, _, shown = text.partition("\n  Examples:\n")
    lines = [line.strip() for line in shown.splitlines()]
    assert len(lines) == 2
    assert ALL[path].epilog == examples(*lines)  # nothing is wrapped
    for line in lines:
        typed = re.search(r"gradwatch([^)>]*)", line)
        assert typed
        words = shlex.split(typed[1])
        assert tuple(words[: len(path)]) == path
        parsed(words)


def parsed(words: list[str]) -> None:
    """Take a line apart as click does; an option or a choice that does not exist raises."""
    command: click.Command = gradwatch
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in ALL:
        path = (*path, words.pop(0))
        command = ALL[path]
    context = click.Context(command, help_option_names=["-h", "--help"])
    values, rest, _ = command.make_parser(context).parse_args(words)
    assert not rest
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice) and isinstance(values.get(parameter.name), str):
            parameter.type.convert(values[parameter.name], parameter, context)
    if path == ("explain",) and isinstance(values["check"], str):
        assert values["check"] in [check.NAME for check in CHECKS]
    if path == ("zoo", "run"):
        assert values["name"] in [family.name for family in families.EVERY]


def test_a_wrong_example_would_be_noticed() -> None:
    for wrong in (["report", "--nonsense"], ["completion", "tcsh"], ["weights", "-o"]):
        with pytest.raises(click.UsageError):
            parsed(wrong)


def test_every_command_has_one_line_in_the_list() -> None:
    text = CliRunner().invoke(gradwatch, ["--help"], env={"COLUMNS": "80"}).stdout
    listed = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


BLOCKED = """
import sys
for name in ("PIL", "imageio_ffmpeg", "distributed", "mcp", "torch"):
    sys.modules[name] = None
from gradwatch.cli.main import COMMANDS, main
for command in ([], *([name] for name in COMMANDS)):
    try:
        main([*command, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, (command, ended.code)
"""


def test_help_needs_nothing_that_is_optional() -> None:
    """One missing picture library must not take the whole program with it."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: gradwatch") == len(COMMANDS) + 1
