"""What is shown while something lasts."""

import threading

import pytest

from gradwatch.cli import progress


def test_waiting_shows_a_word_after_a_while_and_takes_it_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for forced, seen in (("", False), ("1", True)):
        monkeypatch.setenv("FORCE_COLOR", forced)
        with progress.waiting("reading the run"):
            for thread in threading.enumerate():
                if isinstance(thread, threading.Timer):
                    thread.join()
        said = capsys.readouterr().err
        assert ("reading the run" in said) is seen
        assert said.endswith("\x1b[2K") is seen  # the line is erased


def test_what_is_quick_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 1e6)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.waiting("reading the run"):
        pass
    assert capsys.readouterr().err == ""
