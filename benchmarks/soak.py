"""An hour of a recorded training with its page open and 50 visitors: `make soak`.

The training has one core; `gradwatch serve`, the visitors and a browser have the other. Every
visitor holds a stream of events and fetches the view each time the run has grown, as the page does.
Beside it a twin trains that nobody watches: both in turn, for a second or two each. While the twin
does, all else is stopped, so that what it is compared with is a machine that does nothing else.
Twins differ by some per cent for no other reason than where their memory lies, so they are
compared before either is watched and after, and what counts is how far that ratio is from both.

Bars: memory of the training, the server and its decoders grows by no more than GROWTH an hour;
p95 of all answers under ANSWER seconds; every stream is still there; every number the training
logged is read at the end, the same; the training is at most SLOWER slower. `SOAK_MINUTES=10 make
soak` is a shorter one; under MINUTES_FOR_MEMORY the memory is printed and not judged.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray

MINUTES = float(os.environ.get("SOAK_MINUTES") or 60)
MINUTES_FOR_MEMORY = 10
VISITORS = 50
SEGMENT = min(2.0, MINUTES * 60 / 16)
"""Seconds that one of the twins trains before the other does."""
UNWATCHED = 0.2
"""Time in which nobody is watched, before and again after, as a share of that in which one is."""
WARM = 3
"""Pairs of segments that do not count."""
WARM_UP = 0.25
"""Share of the time after which memory is looked at."""
GROWTH = {"training": 30.0, "server": 120.0, "decoders": 60.0}
"""MB per hour: a run that grows is held in memory by whoever shows it."""
ANSWER, SLOWER = 1.0, 0.02
BETWEEN_LOOKS = 10.0
SHOWN = "sections=window,heat,scalars&maps=grad_rms"


# -- the training, a process of its own -----------------------------------------------------------


def train(folder: Path) -> None:
    """Do what stdin says: `train SECONDS`, `watch`, `close`, `end`; say the steps that were made.

    Every loss goes to a file of its own too, for comparing.
    """
    import torch

    from benchmarks.models import many
    from gradwatch import Watcher, watch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    bench = many()
    optimizer = torch.optim.AdamW(bench.model.parameters(), 1e-3)
    watcher: Any = None
    with (folder / "losses").open("wb") as losses:
        for line in sys.stdin:
            word, _, seconds = line.strip().partition(" ")
            begun, used, steps = time.perf_counter(), time.process_time(), 0
            if word == "watch":
                watcher = watch(bench.model, optimizer, run=folder / "runs" / "soak")
                assert isinstance(watcher, Watcher)
            while word == "train" and time.perf_counter() - begun < float(seconds):
                optimizer.zero_grad()
                loss = bench.loss(bench.model)
                loss.backward()
                if watcher:
                    value = loss.item()
                    watcher.log(loss=value)
                    losses.write(np.float64(value).tobytes())
                else:
                    loss.item()
                optimizer.step()
                steps += 1
            print(
                steps / (time.perf_counter() - begun),
                steps / (time.process_time() - used),
                flush=True,
            )
            if word == "close" and watcher:
                said = f"{watcher.overhead}; its writing thread {100 * watcher.background:.2f} %"
                print(f"the watcher says: {said}", file=sys.stderr)
                watcher.close()
                watcher = None
            if word == "end":
                break


class Training:
    """One of the twins."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "benchmarks.soak", "train", str(folder)]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cores()[0]}),
        )

    async def told(self, what: str) -> NDArray[np.float64]:
        """Have it do something; its steps per second, and per second of processor time."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        line = await asyncio.to_thread(self.process.stdout.readline)
        if what != "end":
            self.process.send_signal(signal.SIGSTOP)  # its writing thread too: it goes on later
        return np.array(line.split() or [np.nan, np.nan], float)


def cores() -> list[int]:
    """The training's, and that of everybody else."""
    found = sorted(CORES)
    return [found[0], found[-1]]


CORES = os.sched_getaffinity(0)


# -- visitors -------------------------------------------------------------------------------------


class Visitors:
    """Those who look on, and what they were given."""

    def __init__(self, link: str) -> None:
        self.link = urlsplit(link)
        host = {"host": self.link.netloc}
        # A line that rests is left in time: the server would close it under our next request.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=1.0
        )
        at = f"http://127.0.0.1:{self.link.port}"
        self.client = httpx.AsyncClient(base_url=at, headers=host, limits=limits, timeout=60)
        self.seconds: list[float] = []
        self.problems: list[str] = []
        self.streams = self.waiting = 0
        self.looking = asyncio.Event()
        """Nobody asks for anything while the twin that is not watched trains."""

    async def enter(self) -> None:
        """Use up the link; its cookie is everybody's."""
        await self.client.get(f"/?{self.link.query}")

    async def ask(self, path: str, **headers: str) -> httpx.Response:
        begun = time.perf_counter()
        self.waiting += 1
        try:
            answer = await self.client.get(path, headers=headers)
        finally:
            self.waiting -= 1
        self.seconds.append(time.perf_counter() - begun)
        if answer.status_code not in (200, 304):
            self.problems.append(f"{path}: {answer.status_code}")
        return answer

    async def visit(self) -> None:
        """The list, the run; then some of it now and then, and all of it when it has grown."""
        listed = (await self.ask("/api/runs")).json()["runs"]
        run = f"/api/runs/{listed[0]['id']}"
        tag = (await self.ask(f"{run}/view?soon=1")).headers.get("etag", "")
        async with asyncio.TaskGroup() as both:
            both.create_task(self.pan(run))
            both.create_task(self.follow(run, tag))

    async def pan(self, run: str) -> None:
        """Now and then, a look at some steps."""
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5) * BETWEEN_LOOKS)
            await self.looking.wait()
            first = random.randrange(1000)
            await self.ask(f"{run}/view?first={first}&last={first + 500}&{SHOWN}")

    async def follow(self, run: str, tag: str) -> None:
        """The whole view each time the run has grown."""
        async with self.client.stream("GET", f"{run}/events", timeout=None) as stream:
            self.streams += 1
            try:
                async for line in stream.aiter_lines():
                    if line == "event: grown":
                        await self.looking.wait()
                        answer = await self.ask(
                            f"{run}/view?soon=1&changes=1", **{"if-none-match": tag}
                        )
                        tag = answer.headers.get("etag", tag)
            finally:
                self.streams -= 1

    @contextlib.asynccontextmanager
    async def away(self, but: int) -> AsyncIterator[None]:
        """Nobody asks, and when all have their answers, every process but one is stopped."""
        self.looking.clear()
        while self.waiting:
            await asyncio.sleep(0.01)
        others = [pid for pid in children(os.getpid()) if pid != but]
        tell(others, signal.SIGSTOP)
        yield
        tell(others, signal.SIGCONT)
        self.looking.set()

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator[Any]:
        """The page itself, in a real browser; None where there is none."""
        names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        path = next((found for name in names if (found := shutil.which(name))), None)
        if path is None:
            yield None
            return
        from playwright.async_api import async_playwright

        async with async_playwright() as playwright:
            started = await playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox", "--disable-gpu"]
            )
            context = await started.new_context()
            at = f"http://{self.link.netloc}"
            jar = [
                {"name": c.name, "value": c.value or "", "url": at} for c in self.client.cookies.jar
            ]
            await context.add_cookies(jar)  # type: ignore[arg-type]
            page = await context.new_page()
            page.on("pageerror", lambda error: self.problems.append(f"page: {error}"))
            await page.goto(at)
            yield page
            await started.close()


# -- memory ---------------------------------------------------------------------------------------


class Memory:
    """Resident bytes of some processes over time."""

    def __init__(self, training: int, server: int) -> None:
        self.training, self.server = training, server
        self.samples: list[tuple[float, float, float, float]] = []

    async def watch(self) -> None:
        """Once a second."""
        while True:
            decoders = sum(resident(child) for child in children(self.server))
            sizes = resident(self.training), resident(self.server), decoders
            self.samples.append((time.monotonic(), *sizes))
            await asyncio.sleep(1)

    def slopes(self) -> dict[str, float]:
        """MB per hour by least squares, after the warm-up."""
        table = np.array(self.samples[int(len(self.samples) * WARM_UP) :])
        hours = (table[:, 0] - table[0, 0]) / 3600
        columns = zip(GROWTH, table[:, 1:].T / 1e6, strict=True)
        return {name: float(np.polyfit(hours, column, 1)[0]) for name, column in columns}


def resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0.0


def tell(pids: list[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def children(pid: int) -> list[int]:
    own: list[int] = []
    with contextlib.suppress(OSError):  # it ended
        for task in Path(f"/proc/{pid}/task").iterdir():  # each thread has its own
            own += map(int, (task / "children").read_text().split())
    return own + [below for child in own for below in children(child)]


# -- all of it ------------------------------------------------------------------------------------


class Soaked(NamedTuple):
    """What was measured."""

    slower: float
    dearer: float
    """By processor time, its writing thread included: what a busy machine does not change."""
    slopes: dict[str, float]
    answers: list[float]
    streams: int
    problems: list[str]


async def soak(watched: Training, alone: Training, server: IO[str], pid: int) -> Soaked:
    memory = Memory(watched.process.pid, pid)
    unwatched, during = [], []

    async def compare() -> None:
        for number in range(WARM + int(UNWATCHED * MINUTES * 60 / (2 * SEGMENT))):
            speed = await watched.told(f"train {SEGMENT}")
            speed /= await alone.told(f"train {SEGMENT}")
            unwatched.extend([speed] * (number >= WARM))
        print(f"unwatched: {np.median(unwatched, axis=0)[0]:.3f}", flush=True)

    await compare()
    await watched.told("watch")
    await watched.told(f"train {SEGMENT}")
    link = await asyncio.to_thread(server.readline)
    visitors = Visitors(link.strip())
    await visitors.enter()
    visitors.looking.set()
    end = time.monotonic() + MINUTES * 60
    async with visitors.browser() as page:
        count = VISITORS - (page is not None)
        tasks = [asyncio.create_task(visitors.visit()) for _ in range(count)]
        tasks.append(asyncio.create_task(memory.watch()))
        while time.monotonic() < end or len(during) < 3:
            speed = await watched.told(f"train {SEGMENT}")
            async with visitors.away(but=alone.process.pid):
                during.append(speed / await alone.told(f"train {SEGMENT}"))
            if len(during) % 10 == 0:
                ratio = np.median(during, axis=0)[0]
                print(f"{len(during)}: {ratio:.3f}, {visitors.streams} streams", flush=True)
        streams = visitors.streams + (page is not None and bool(await page.title()))
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if ended is not None and not isinstance(ended, asyncio.CancelledError):
                visitors.problems.append(repr(ended))
    tell(children(pid), signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    await watched.told("close")
    await compare()
    slower, dearer = 1 - np.median(during, axis=0) / np.median(unwatched, axis=0)
    return Soaked(slower, dearer, memory.slopes(), visitors.seconds, streams, visitors.problems)


def lost(folder: Path) -> str:
    """What the run misses of what the training logged; "" where every number is the same."""
    from gradwatch.store import open_run

    logged = np.fromfile(folder / "losses")
    run = open_run(folder / "runs" / "soak")
    read = run.scalars["loss"][: len(logged)]
    told = [event.text for event in run.events if event.kind in ("damage", "gap")]
    if told or not run.info["complete"] or not np.array_equal(read, logged):
        same = int((read == logged[: len(read)]).sum())
        return f"{same} of {len(logged)} losses are read as they were logged; {told[:3]}"
    print(f"{len(logged)} losses are read as they were logged")
    return ""


def missed(soaked: Soaked, loss: str) -> Iterator[str]:
    """Print every figure; the bars that were not kept."""
    p95 = float(np.percentile(soaked.answers, 95))
    print(f"training: {100 * soaked.slower:+.2f} % slower than its twin, watched and served")
    print(f"          {100 * soaked.dearer:+.2f} % by processor time, its writing thread included")
    print(
        f"answers: {len(soaked.answers)}, p95 {1e3 * p95:.0f} ms, worst {max(soaked.answers):.2f} s"
    )
    print(f"streams: {soaked.streams} of {VISITORS} alive")
    for name, slope in soaked.slopes.items():
        print(f"memory of the {name}: {slope:+.1f} MB per hour")
        if slope > GROWTH[name] and MINUTES >= MINUTES_FOR_MEMORY:
            yield f"the memory of the {name} grows by {slope:.1f} MB per hour, not {GROWTH[name]}"
    if soaked.slower > SLOWER:
        yield f"the training is {100 * soaked.slower:.2f} % slower, not {100 * SLOWER:.0f} %"
    if p95 > ANSWER:
        yield f"p95 of the answers is {p95:.2f} s, not {ANSWER} s"
    if soaked.streams != VISITORS:
        yield f"{soaked.streams} of {VISITORS} streams are alive"
    yield from [*soaked.problems[:5], *([loss] if loss else [])]


def main() -> int:
    if len(CORES) < 2:
        print("This needs two cores: one is the training's.", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, {cores()[1]})
    folder = Path(tempfile.mkdtemp())
    (folder / "watched" / "runs").mkdir(parents=True)
    words = [sys.executable, "-m", "gradwatch", "serve", str(folder / "watched" / "runs")]
    server = subprocess.Popen([*words, "--port", "0"], stdout=subprocess.PIPE, text=True)
    twins: list[Training] = []
    try:
        twins += [Training(folder / name) for name in ("watched", "alone")]
        assert server.stdout
        os.nice(10)  # visitors have machines of their own: here they give way to the server
        soaked = asyncio.run(soak(*twins, server.stdout, server.pid))
        for twin in twins:
            asyncio.run(twin.told("end"))
            twin.process.wait(60)
        misses = list(missed(soaked, lost(folder / "watched")))
        print("\n".join(f"MISSED: {text}" for text in misses) or "every bar is kept")
        return 1 if misses else 0
    finally:
        for process in (server, *(twin.process for twin in twins)):
            process.kill()
            process.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(train(Path(sys.argv[2])) if sys.argv[1:2] == ["train"] else main())
