"""A real Chromium. Without one these tests are skipped, and say so loudly."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60_000


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if chromium() is None:
        terminalreporter.section("NO CHROMIUM")
        terminalreporter.write_line("The browser tests were SKIPPED: `make browser` installs one.")


@dataclass
class Seen:
    """What a page did that it should not have done."""

    problems: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@dataclass
class Tab:
    """A page and what it did."""

    page: Any
    seen: Seen
    folder: Path

    def open(self, text: str, fragment: str = "") -> Any:
        """Write a page to disk, open it and wait until it has drawn itself."""
        path = self.folder / "page.html"
        path.write_text(text)
        self.page.goto(f"file://{path}{fragment}")
        self.page.wait_for_selector("body[data-ready=yes]", timeout=PATIENCE)
        return self.page

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the page's policy forbids what Playwright would wait with."""
        end = time.monotonic() + PATIENCE / 1000
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            self.page.wait_for_timeout(50)

    def quiet(self) -> None:
        """No error on the console, no request to anywhere, no dialog."""
        assert self.seen == Seen()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("NO CHROMIUM: `make browser` installs one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any, tmp_path: Path) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    seen = Seen()

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            seen.problems.append(message.text)

    def asked(request: Any) -> None:
        address = urlsplit(request.url)
        ours = address.scheme == "http" and str(address.hostname).endswith(".localhost")
        if not ours and address.scheme not in ("file", "data"):
            seen.outside.append(request.url)

    def dialog(shown: Any) -> None:
        seen.dialogs.append(shown.message)
        shown.dismiss()

    page.on("console", said)
    page.on("pageerror", lambda error: seen.problems.append(str(error)))
    page.on("request", asked)
    page.on("dialog", dialog)
    yield Tab(page, seen, tmp_path)
    context.close()
