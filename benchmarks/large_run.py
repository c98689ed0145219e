"""The live page of a run of 10^6 steps × 500 tensors, over HTTP from a real `gradwatch serve`.

The folder is one that retention leaves (see `long_folder`): gradients every step, updates every
fourth, weights and activations every sixteenth; no probes, no optimizer state, no histograms. Three
spikes are planted, one where only thousands are kept, one among the hundreds, one among whole rows.

Bars: what a first paint needs under 1 s after asking for it, windows while panning under 100 ms,
every spike found at every zoom. `python -m benchmarks.large_run FOLDER` keeps the folder for later.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.long_folder import LongFolder, Spike
from gradwatch.views.model.heat import codes_of, decoded

STEPS, TENSORS = 1_000_000, 500
SPIKES = (Spike(123_457, 16, 1e6), Spike(700_123, 32, 1e6), Spike(995_555, 48, 1e6))
ZOOMS = (1_000_000, 300_000, 100_000, 30_000, 10_000, 3_000, 1_000, 300, 100, 30, 10, 1)
PAN = "sections=window,heat,scalars,learning_rates,updates&maps=grad_rms"
"""What a page fetches when one pans: the map that is shown and the curves."""


class Page:
    """Somebody who opened the link."""

    def __init__(self, link: str) -> None:
        address = httpx.URL(link)  # only browsers know that names under .localhost are this machine
        self.root = address.copy_with(host="127.0.0.1", query=None)
        headers = {"host": address.netloc.decode()}
        self.client = httpx.Client(timeout=300, follow_redirects=True, headers=headers)
        self.client.get(address.copy_with(host="127.0.0.1")).raise_for_status()
        self.key = ""

    def ask(self, path: str) -> tuple[Any, float, int]:
        """The answer, its seconds and its bytes."""
        begun = time.perf_counter()
        answer = self.client.get(self.root.join(path))
        spent = time.perf_counter() - begun
        answer.raise_for_status()
        return answer.json(), spent, len(answer.content)

    def view(self, query: str) -> tuple[Any, float, int]:
        return self.ask(f"/api/runs/{self.key}/view?{query}")


def found(model: dict[str, Any], spike: Spike) -> bool:
    """Whether the map shows it: in a column that holds its step, far above everything else."""
    heat = model["heat"]
    shown = heat["maps"].get("grad_rms")
    if shown is None:
        return False
    values = decoded(*codes_of(heat, "grad_rms"))
    columns = [
        number
        for number, column in enumerate(shown["columns"])
        if heat["first"][column] <= spike.step <= heat["last"][column]
    ]
    size = np.sqrt(65536.0)
    return any(values[spike.tensor, column] > 0.9 * spike.value / size for column in columns)


def around(step: int, width: int) -> str:
    first = max(0, min(step - width // 3, STEPS - width))
    return f"first={first}&last={first + width - 1}"


def panned(page: Page, width: int) -> list[float]:
    """Seconds of each window on the way from one end of the run to the other."""
    return [
        page.view(f"first={first}&last={first + width - 1}&{PAN}")[1]
        for first in np.linspace(0, STEPS - width, 40).astype(int).tolist()
    ]


def visit(link: str, say: Callable[[str], None]) -> None:
    page = Page(link)
    listed, spent, _ = page.ask("/api/runs")
    say(f"the list answers after {spent:.3f} s: {listed['runs'][0]['line']!r}")
    page.key = listed["runs"][0]["id"]
    begun = time.perf_counter()
    model, spent, size = page.view("soon=1")
    coming = model.get("coming", {})
    say(f"first paint: {spent:.2f} s, {size / 1e3:.0f} kB, coming: {coming.get('what')}")
    say(f"  it shows {sum(found(model, spike) for spike in SPIKES)} of {len(SPIKES)} spikes")
    while model.get("coming", {}).get("what") == "opening":
        model = page.view("soon=1")[0]
    say(f"open whole after {time.perf_counter() - begun:.2f} s")
    for spike in SPIKES:
        seen = {}
        slowest = 0.0
        for width in ZOOMS:
            answer, spent, _ = page.view(f"{around(spike.step, width)}&{PAN}")
            seen[width] = found(answer, spike)
            slowest = max(slowest, spent)
        missed = [width for width, there in seen.items() if not there]
        say(f"spike at step {spike.step}: {len(ZOOMS) - len(missed)} of {len(ZOOMS)} zooms, "
            f"missed at {missed}; slowest window {1e3 * slowest:.0f} ms")  # fmt: skip
    for width in (300_000, 100_000, 20_000, 2_000):
        for turn in ("first", "second"):
            spent = sorted(panned(page, width))
            say(
                f"panning {width} steps wide, {turn} time: median {1e3 * spent[20]:.0f} ms, "
                f"p95 {1e3 * spent[37]:.0f} ms, slowest {1e3 * spent[-1]:.0f} ms"
            )
    model, spent, size = page.view("")
    say(f"the whole model, {len(model['heat']['maps'])} maps: {spent:.2f} s, {size / 1e6:.2f} MB")


def served(folder: Path, say: Callable[[str], None]) -> None:
    words = [sys.executable, "-m", "gradwatch", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            visit(process.stdout.readline().strip(), say)
            status = Path(f"/proc/{process.pid}/status")
            if status.exists():
                peak = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
                say(f"memory of the server: {int(peak.split()[1]) / 1024:.0f} MiB at its peak")
        finally:
            process.terminate()


def main(kept: Path | None = None) -> None:
    folder = kept or Path(tempfile.mkdtemp())
    try:
        if not (folder / "long").is_dir():
            begun = time.perf_counter()
            LongFolder(folder / "long", STEPS, TENSORS, SPIKES).make()
            print(f"made in {time.perf_counter() - begun:.0f} s")
        served(folder, print)
    finally:
        if kept is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
