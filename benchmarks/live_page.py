"""The live page of a run of 20,000 steps × 50 tensors in a real Chromium; what its server takes.

Bars: first paint within 1.5 s, 95 % of the frames while panning
and zooming within 100 ms, at most 300 MB of heap in the page and of memory in the server.
`python -m benchmarks.live_page FOLDER` keeps the folder for later.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import rows_of, write

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
MB = 1e6
FRAMES = """() => {
  window.frames_ = [];
  let last = performance.now();
  const tick = (now) => {
    window.frames_.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


class Memory(threading.Thread):
    """The most that a process and its children took together, looked at many times a second."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak, self.ended = process, 0.0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            self.peak = max(self.peak, self.now())

    def now(self) -> float:
        processes = [self.process]
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.process}/task").iterdir():
                processes += map(int, (task / "children").read_text().split())
        return sum(map(_share, processes))


def _share(process: int) -> float:
    """Bytes of a process; what several have in common counts in part for each."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0.0


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Memory]]:
    """A real `gradwatch serve`: its link, and what it takes."""
    words = [sys.executable, "-m", "gradwatch", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        memory = Memory(process.pid)
        memory.start()
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), memory
        finally:
            memory.ended.set()
            process.terminate()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(found for name in BROWSERS if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(300_000)
        yield page
        browser.close()


def frames(page: Any, does: Callable[[], None]) -> list[float]:
    """Milliseconds of each frame while something is done, until the page is at rest again."""
    page.evaluate("() => { window.frames_.length = 0; }")
    does()
    page.wait_for_timeout(600)
    found: list[float] = page.evaluate("() => window.frames_")
    return found


def waits(page: Any) -> list[float]:
    """Milliseconds from each question for data to its answer, since the last look."""
    found: list[float] = page.evaluate(
        "() => { const all = performance.getEntriesByType('resource')"
        ".filter((one) => one.name.includes('/view?')).map((one) => one.duration);"
        " performance.clearResourceTimings(); return all; }"
    )
    return found


def told(what: str, values: list[float]) -> str:
    if not values:
        return f"{what}: none"
    half, most = np.percentile(values, [50, 95])
    return (
        f"{what}: {len(values)}, median {half:.0f} ms, 95 % {most:.0f} ms, max {max(values):.0f} ms"
    )


def opened(page: Any, address: str, say: Callable[[str], None], which: str) -> None:
    """Load the page of the run and tell when what was there."""
    page.goto("about:blank")
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("#map .cells canvas")
    page.wait_for_selector("#loss .plot canvas")
    drawn = time.perf_counter() - begun
    paint = page.evaluate(
        "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    )
    say(f"{which} visit: first paint {paint / 1e3:.2f} s, map and curves drawn {drawn:.2f} s")


def dragged(page: Any, canvas: Any, begin: float, end: float) -> None:
    """From one share of the width to another: what both the map and the curves zoom by."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    y = box["y"] + min(20, box["height"] / 2)
    page.mouse.move(box["x"] + begin * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=8)
    page.mouse.up()


def panned(page: Any, canvas: Any) -> None:
    """Sideways scrolling there and back; in its rests the data of the place are fetched."""
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    for by in (120, -90):
        for turn in range(20):
            page.mouse.wheel(by, 0)
            page.wait_for_timeout(400 if turn % 5 == 4 else 30)


def moved(page: Any, say: Callable[[str], None]) -> None:
    """Pan and zoom the map and the loss."""
    page.evaluate(FRAMES)
    waits(page)
    canvas = page.locator("#map .cells canvas")
    for _ in range(3):
        say(told("frames, zooming the map", frames(page, lambda: dragged(page, canvas, 0.3, 0.65))))
        say(told("frames, panning the map", frames(page, lambda: panned(page, canvas))))
    say(told("answers meanwhile", waits(page)))
    page.keyboard.press("Escape")
    loss = page.locator("#loss .u-over").first
    for _ in range(3):
        say(told("frames, zooming the loss", frames(page, lambda: dragged(page, loss, 0.3, 0.65))))


def heap(page: Any) -> float:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize"))


def measured(folder: Path, say: Callable[[str], None]) -> None:
    with serving(folder) as (link, memory), chromium() as page:
        page.goto(link)
        page.wait_for_selector("table.runs a")
        say(f"server with its list: {memory.now() / MB:.0f} MB")
        address = page.evaluate("() => document.querySelector('table.runs a').href")
        opened(page, address, say, "first")
        opened(page, address, say, "second")
        moved(page, say)
        say(f"heap of the page: {heap(page) / MB:.0f} MB")
        say(f"server: {memory.now() / MB:.0f} MB, at most {memory.peak / MB:.0f} MB")


def main(kept: Path | None = None) -> None:
    folder = kept or Path(tempfile.mkdtemp())
    try:
        if not (folder / "long").is_dir():
            write(folder / "long", rows_of(500), 20_000).close(60.0)
        measured(folder, print)
    finally:
        if kept is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
