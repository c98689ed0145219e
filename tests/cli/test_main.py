"""The program around its commands: colours, names that are not known, the width of a terminal."""

from pathlib import Path

import pytest
from rich.text import Text
from tests.cli.terminals import at_a_terminal
from tests.views.samples import network
from tests.views.stored import stored

from gradwatch.cli.main import main

LONG = [f"transformer.encoder.layers.{i}.self_attn.out_proj" for i in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    stored(network(names=LONG, steps=60, broken_from=30), home / "runs/one", "one")
    return home


@pytest.mark.parametrize("command", ["show", "diagnose", "analyze", "runs"])
def test_colours_follow_the_terminal_and_the_environment(command: str, folder: Path) -> None:
    words = [command] if command == "runs" else [command, "runs/one"]
    assert "\x1b[" in at_a_terminal(words, where=folder)
    assert "\x1b" not in at_a_terminal(words, where=folder, NO_COLOR="1")
    assert "\x1b" not in at_a_terminal(words, where=folder, TERM="dumb")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_lines_fit_the_terminal(columns: int, folder: Path) -> None:
    for words in (["show", "runs/one"], ["analyze", "runs/one"], ["runs"], ["explain"]):
        text = Text.from_ansi(at_a_terminal(words, columns=columns, where=folder)).plain
        assert max(len(line) for line in text.splitlines()) <= columns, words
        assert columns < 200 or words[0] != "show" or LONG[11] in text


def test_an_unknown_command_is_answered_with_those_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diagnos"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "There is no command 'diagnos'. Did you mean diagnose, " in said
    assert "gradwatch --help" in said
