"""The newcomer's page names files, functions and lines of code that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gradwatch"
PAGE = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROSE = re.sub(r"```python\n.*?```", "", PAGE, flags=re.DOTALL)
FILES = sorted(set(re.findall(r"(?<![\w./])(?:[a-z_]+/)+(?:[a-z_]+\.(?:py|md|c|h))?", PROSE)))
SOURCES = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def place(name: str) -> Path:
    """A path of the page: from the root of the project, of the package, or a folder of either."""
    return next((p for p in (ROOT / name, SOURCE / name) if p.exists()), ROOT / name)


@pytest.mark.parametrize("name", [f for f in FILES if not f.startswith("runs/")])
def test_the_file_is_there(name: str) -> None:
    assert place(name).exists()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", PAGE))
def test_the_link_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Za-z_]{4,})(?:\(\))?`", PROSE))))
def test_the_name_is_one_of_ours(name: str) -> None:
    word = re.compile(rf"\b{name}\b")
    assert any(word.search(text) for text in SOURCES.values())


@pytest.mark.parametrize(
    ("name", "word"), re.findall(r"((?:[a-z_]+/)+[a-z_]+\.py) ([A-Z][A-Za-z]+)", PROSE)
)
def test_the_class_beside_a_file_is_in_it(name: str, word: str) -> None:
    assert re.search(rf"\bclass {word}\b", place(name).read_text("utf-8"))


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_is_the_source_s_own(block: str) -> None:
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    assert any(all(line in text for line in lines) for text in SOURCES.values()), lines
