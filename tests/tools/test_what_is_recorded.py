"""The page that says what is recorded is the one the catalogue makes."""

from pathlib import Path

from tools.what_is_recorded import page

from gradwatch.stats import Stat, State

PAGE = Path(__file__).parents[2] / "docs" / "what-is-recorded.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == page(), (
        "run: python -m tools.what_is_recorded > docs/what-is-recorded.md"
    )


def test_every_statistic_and_state_is_on_it() -> None:
    text = page()
    assert all(f"| `{stat}` |" in text for stat in Stat)
    assert all(f"| {state.name.lower().replace('_', ' ')} |" in text for state in State)
    assert "||" not in text
