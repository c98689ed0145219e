"""How wide the terminal is, and whether it is coloured."""

import pytest

from gradwatch.views.console import coloured, console, prose_width, terminal_width


@pytest.mark.parametrize(
    ("columns", "tables", "sentences"),
    [("60", 60, 60), ("80", 80, 80), ("200", 200, 120), ("50", 50, 60), ("9", 40, 60)],
)
def test_tables_take_it_all_and_sentences_what_can_be_read(
    columns: str, tables: int, sentences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert (terminal_width(), prose_width(), console().width) == (tables, sentences, tables)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_are_what_the_environment_asks_for(
    environment: dict[str, str], wanted: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert coloured() is wanted
    assert (console().color_system is not None) is (wanted is True)  # no terminal under test
