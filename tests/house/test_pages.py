"""Generated pages are fresh."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = {
    "docs/numbers.md": "tools.numbers_page",
    "docs/what-is-recorded.md": "tools.what_is_recorded",
    "docs/checks.md": "tools.checks_page",
    "docs/from-trustformers.md": "tools.from_trustformers",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_its_module_writes(page: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", PAGES[page]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    message = f"renew it: python -m {PAGES[page]} > {page}"
    assert (ROOT / page).read_text() == done.stdout, message
