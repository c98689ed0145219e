"""Server-sent events: one line whenever something grew; the browser reconnects by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from gradwatch.server.library import Library
from gradwatch.server.shelf import Gone, Shelf
from gradwatch.views.model import to_json

SECONDS = 1.0
HEARTBEAT = 15
"""Seconds of silence after which a comment is sent, so that a dead line is noticed."""
MOST_STREAMS = 64


class News(NamedTuple):
    """One thing to tell: what happened, since which mark, and details as JSON."""

    name: str
    mark: str
    data: str = "{}"

    def sent(self) -> bytes:
        """Progress has no id: a page that comes back resumes after what grew, not after that."""
        number = f"id: {self.mark}\n" if self.mark else ""
        return f"event: {self.name}\n{number}data: {self.data}\n\n".encode()


Look = Callable[[], list[News]]


class Streams:
    """How many streams are open; more than `MOST_STREAMS` are refused."""

    def __init__(self) -> None:
        self.open = 0

    @property
    def full(self) -> bool:
        return self.open >= MOST_STREAMS

    async def events(self, look: Look, last: str) -> AsyncIterator[bytes]:
        """Send what `look` says when it is new; never twice the same."""
        self.open += 1
        try:
            silent = 0.0
            yield b"retry: 2000\n\n"
            told: set[News] = {News("grown", last)}
            while True:
                found = await run_in_threadpool(look)
                for news in found:
                    if news not in told:
                        silent = 0.0
                        yield news.sent()
                told = set(found) or told
                if silent >= HEARTBEAT:
                    silent = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(SECONDS)
                silent += SECONDS
        finally:
            self.open -= 1


def of_run(library: Library, key: str) -> Look:
    """Grown, complete or gone; how far the long work is, and that it is ready."""

    def look() -> list[News]:
        try:
            shelf = library.shelf(key)
            mark = shelf.mark()
        except Gone:
            return [News("gone", "gone")]
        if shelf.busy:
            told = {"what": shelf.busy, "done": round(shelf.glimpse.done, 2)}
            return [News("progress", "", to_json(told))]
        if shelf.resting:
            return []  # told when the rest is over, so that the last growth is never missed
        found = [News("grown", mark)]
        if shelf.ready == mark:
            found.append(News("ready", f"{mark}-ready"))
        if _complete(shelf, mark):
            found.append(News("complete", f"{mark}-complete"))
        return found

    return look


def of_list(library: Library) -> Look:
    """A new mark when any run changes, comes or goes, and while some were not looked at yet."""
    tries = 0

    def look() -> list[News]:
        nonlocal tries
        marks = []
        for key, shelf in library.scan().items():
            try:
                marks.append(f"{key}{shelf.mark()}")
            except Gone:
                continue
        if library.pending():
            tries += 1
        return [News("grown", f"{hash(tuple(marks)) & (2**63 - 1):x}-{tries}")]

    return look


def _complete(shelf: Shelf, mark: str) -> bool:
    return bool(shelf.summary and shelf.summary["complete"] and shelf.summary_mark == mark)
