"""Makes the pictures of the documentation: `python -m tests.browser.pictures RUN docs/images`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.browser.conftest import FLAGS, PATIENCE, chromium

from gradwatch.store import open_run
from gradwatch.views.animation import AnimationOptions, animate
from gradwatch.views.model import build, diagnosed
from gradwatch.views.page import report


def drawn(browser: Any, address: str, width: int, height: int, theme: str) -> Any:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready=yes]", timeout=PATIENCE)
    page.wait_for_timeout(300)  # pictures only: nothing is asserted on it
    return page


def main(run_folder: Path, images: Path) -> None:
    run = open_run(run_folder)
    found = diagnosed(run)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        page_file.write_text(report(build(run, found)))
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        address = f"file://{page_file}"
        drawn(browser, address, 1120, 1640, "light").screenshot(path=images / "report.png")
        drawn(browser, address, 390, 840, "light").screenshot(path=images / "phone.png")
        # As high as the page: what sticks to the top of a screen would lie over a part of it.
        whole = drawn(browser, address, 1200, 6000, "light")
        whole.locator("#analyses").screenshot(path=images / "analyses.png")
        dark = drawn(browser, f"{address}#step=130", 1120, 900, "dark")
        for part in ("map", "flow"):
            dark.locator(f"#{part}").screenshot(path=images / f"{part}-dark.png")
        browser.close()
    for path in images.glob("*.png"):  # a page has few colours
        with Image.open(path) as picture:
            smaller = picture.convert("RGB").quantize(256)
        smaller.save(path, optimize=True)
    animate(run, found, images / "flow.gif", AnimationOptions(frames=80), force=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
