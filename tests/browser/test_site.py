"""The documentation as a site: built without a warning, read and searched from a disk."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page.with_suffix(".html")).exists()} == set()


@pytest.mark.browser
def test_search_works_from_a_file(tab: Any, site: Path) -> None:
    page = tab.page
    page.goto((site / "index.html").as_uri())
    page.fill("input[name=q]", "NaN")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert "My loss is NaN" in page.inner_text("#search-results")
    page.click("#search-results >> text=My loss is NaN")
    assert page.inner_text("h1").startswith("My loss is NaN")
    tab.quiet()


@pytest.mark.browser
def test_no_page_is_wider_than_a_phone(tab: Any, site: Path) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 800})
    wide = []
    for path in sorted(site.rglob("*.html")):
        tab.page.goto(path.as_uri())
        if tab.page.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(path.name)
    assert wide == []
    tab.quiet()
