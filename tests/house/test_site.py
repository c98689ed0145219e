"""The documentation as a site: every link leads somewhere, every page can be found, what the pages
show is what one gets."""

import re
from pathlib import Path

import pytest
from tests.house.shown import PAGES, ROOT, rerun

import gradwatch
from gradwatch.checks import CHECKS

DOCS = ROOT / "docs"
WRITTEN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(page), re.MULTILINE):
        text = LINK.sub("", heading).replace("[", "").lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        again = sum(
            re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other) is not None for other in found
        )
        found.append(f"{slug}-{again}" if again else slug)
    return set(found)


def broken_links(page: Path) -> list[str]:
    """Relative links of a page that lead to no file, or to no heading of it."""
    broken = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        outside = re.match(r"[a-z]+:", link)
        if not outside and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_every_promise_of_security_names_tests_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text() + (DOCS / "threats.md").read_text()
    named = re.findall(r"`(tests/[^`]*)`", text)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Numbers in `--json`\n# A\n# A\n[a](#numbers-in---json) [b](#a-1) [c](https://x.y/z)\n"
        "```\n# Code\n[no link](nowhere.md)\n```\n[d](#code) [e](other.md) [f](page.md#b)\n"
    )
    assert broken_links(page) == ["#code", "other.md", "page.md#b"]


def test_every_page_can_be_reached_from_the_index() -> None:
    toctrees = re.findall(r"```{toctree}\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    entries = [line for tree in toctrees for line in tree.splitlines()]
    listed = [line for line in entries if line and not line.startswith(":")]
    gallery = LINK.findall(prose(DOCS / "gallery" / "index.md"))
    reached = {DOCS / f"{name}.md" for name in listed} | {
        DOCS / "gallery" / name for name in gallery
    }
    assert set(DOCS.rglob("*.md")) - {DOCS / "index.md"} - reached == set()


@pytest.mark.parametrize("name", gradwatch.__all__)
def test_the_reference_has_every_public_name(name: str) -> None:
    assert re.search(rf":: gradwatch\.{name}\b", (DOCS / "reference.md").read_text())


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_one_gets(page: Path, tmp_path: Path) -> None:
    """Numbers differ between machines; the checks that are named and the exit codes do not."""
    words = re.compile("|".join([rf"\b{check.NAME}\b" for check in CHECKS] + [r"exit code \d"]))
    for line, shown, real in rerun(page.read_text(), tmp_path):
        said = set(words.findall(real))
        assert said == set(words.findall(shown)), f"{line}: renew it: python -m tests.house.shown"
