"""Completion as a shell asks for it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.views.samples import network
from tests.views.stored import stored

from gradwatch.cli.completion import PLACES


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs and a file, and with the program on the path."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("one", "other"):
        stored(network(2, 3), folder / "runs" / name, name)
    (folder / "runs/old.txt").write_text("")
    program = folder / "bin/gradwatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gradwatch "$@"\n')
    program.chmod(0o755)
    return folder


def in_bash(home: Path, *words: str) -> list[str]:
    """What Tab offers for the last of these words behind `gradwatch`."""
    script = f"""
        eval "$(gradwatch completion bash 2>/dev/null)"
        COMP_WORDS=(gradwatch {shlex.join(words)}); COMP_CWORD={len(words)}
        _gradwatch_completion gradwatch
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"},
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def test_commands_and_options(home: Path) -> None:
    assert in_bash(home, "d") == ["diagnose", "drift", "doctor"]
    assert in_bash(home, "export", "--te") == ["--tensorboard"]
    assert in_bash(home, "completion", "") == ["bash", "zsh", "fish"]


def test_checks(home: Path) -> None:
    assert in_bash(home, "explain", "dead") == ["dead-units"]


def test_runs(home: Path) -> None:
    assert in_bash(home, "report", "") == ["one", "other"]
    assert in_bash(home, "report", "ot") == ["other"]


@pytest.mark.parametrize("shell", PLACES)
def test_every_shell_has_its_script_and_is_told_where_it_goes(shell: str) -> None:
    words = [sys.executable, "-m", "gradwatch", "completion", shell]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert f"_GRADWATCH_COMPLETE={shell}_complete" in done.stdout
    assert PLACES[shell] in done.stderr
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, timeout=60, check=True)
