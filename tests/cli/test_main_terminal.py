"""Nothing that a file, a folder or an argument is named reaches a terminal as a command to it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints.files import safetensors_bytes
from tests.cli.terminals import said_at_a_terminal
from tests.views.samples import network
from tests.views.stored import stored

from gradwatch.cli.main import main
from gradwatch.text import plain

OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12][KA]|\r")
"""Colours, and what a progress bar needs."""
NAMES = (
    "\x1b]0;pwned\x07",
    "\x1b[2J",
    "turned\u202eround",
    "\x9b31mred",
    "two\nlines",
    "[link=http://e]z",
    "[/x]",
    "un\u3164seen\u2800\ufe0f",
)

FOLDER = "\x1b]0;folder\x07"
EACH = ["".join(NAMES), *(pytest.param(name, marks=pytest.mark.security) for name in NAMES)]
"""All at once, and one by one."""


def harmless(words: list[str], columns: int = 80) -> tuple[object, str]:
    """Exit code and text of a command that sent nothing odd."""
    code, said = said_at_a_terminal(words, columns)
    text = OURS.sub("", said)
    odd = [line for line in text.split("\n") if plain(line) != line]
    assert not odd, (words, odd)
    assert "\nlines" not in text, words  # a name makes no line of its own
    assert "fault of gradwatch" not in text, (words, text)
    return code, text


def floats(path: Path, names: tuple[str, ...], value: float = 1.0) -> Path:
    head = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * at, 8 * at + 8]}
        for at, name in enumerate(names)
    }
    data = np.full(2 * len(names), value, "<f4").tobytes()
    path.write_bytes(safetensors_bytes(head, data))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    run = network(names=NAMES, steps=12, broken_from=8)
    stored(run, home / "runs" / FOLDER, "\x1b]0;name\x07")
    return home


@pytest.fixture(autouse=True)
def _at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("name", EACH)
def test_what_is_not_there_is_named_harmlessly(name: str) -> None:
    for words in (
        *([command, name] for command in ("show", "diagnose", "analyze", "report", "weights")),
        *([command, name] for command in ("runs", "explain", "completion", "export", "serve")),
        ["drift", name, name],
        ["animate", name],
        ["runs", "runs", "--delete", name, "--yes"],
        ["runs", "runs", "--prune", "--keep", name],
        ["runs", "runs", name, "--prune", "--keep", "1GB"],
        ["runs", "runs", name],
        ["export", "folder", "-o", name],
        ["export", "folder", "-o", "x.csv", "--stat", name],
        ["report", "folder", "-o", f"{name}/x.html"],
        ["report", "folder", "--colours", name],
        ["show", "folder", "--stat", name],
        ["weights", "nowhere", "--workers", name],
        ["weights", "nowhere", "--fail-on", name],
        ["mcp", f"s3://{name}"],
        [name],
        [f"--{name}"],
    ):
        code, _ = harmless(words)
        assert code in (2, 3), words


RUN = ("show", "diagnose --verbose", "analyze", "report --force", "runs")
MORE = ("show --signals", "show --ranks", "export -o x.csv --force", "animate -o x.html --force")


@pytest.mark.parametrize(
    "line", [*RUN, *(pytest.param(line, marks=pytest.mark.security) for line in MORE)]
)
def test_names_in_a_run_are_shown_harmlessly(line: str) -> None:
    _, text = harmless(line.split(), 200)
    assert "\\x1b]0;" in text


def test_every_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    floats(Path("names.safetensors"), NAMES)
    for words in (
        ["show"],
        ["diagnose"],
        ["analyze"],
        ["runs"],
        ["weights", "names.safetensors"],
        ["drift", "names.safetensors", "names.safetensors"],
    ):
        with pytest.raises(SystemExit):
            main([*words, "--json"])
        said = capsys.readouterr().out
        assert said.isascii(), words
        assert "\\u001b" in said, words


def test_names_in_checkpoints_are_shown_harmlessly() -> None:
    one, two = floats(Path("one.safetensors"), NAMES), floats(Path("two.safetensors"), NAMES[2:], 2)
    for words in (["weights", str(one)], ["weights", str(one), "--verbose", "--spectrum"]):
        code, text = harmless(words, 200)
        assert code == 0
        assert "[link=http://e]z" in text
        assert "[/x]" in text
    _, text = harmless(["drift", str(one), str(two)], 200)
    assert "Missing after: \\x1b]0;pwned\\x07" in text
    assert "[/x]" in text


@pytest.mark.parametrize("name", [*EACH, "\ud800"])
def test_files_of_a_folder_are_named_harmlessly(name: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    for target in (tmp_path, index):
        assert harmless(["weights", str(target)])[0] == 3
    index.unlink()
    if name != "\ud800":
        name = name.replace("/", "")
        (tmp_path / f"{name}.safetensors").write_bytes(b"no checkpoint")
        (tmp_path / f"{name}2.safetensors").write_bytes(b"no checkpoint")
        for target in (tmp_path, tmp_path / f"{name}.safetensors"):
            assert harmless(["weights", str(target)])[0] == 3


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    code, text = harmless(["weights", str(tmp_path)], 200)
    assert code == 3
    assert "Cannot open" in text
