"""Server-sent events: one line whenever something grew; the browser reconnects by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from gradwatch.server.library import Gone, Library, Shelf

SECONDS = 1.0
HEARTBEAT = 15
"""Seconds of silence after which a comment is sent, so that a dead line is noticed."""
MOST_STREAMS = 32


class Streams:
    """How many streams are open; more than `MOST_STREAMS` are refused."""

    def __init__(self) -> None:
        self.open = 0

    @property
    def full(self) -> bool:
        return self.open >= MOST_STREAMS

    async def events(
        self, look: Callable[[], list[tuple[str, str]]], last: str
    ) -> AsyncIterator[bytes]:
        """Send what `look` says, name and id, when the id is new; never twice the same."""
        self.open += 1
        try:
            silent = 0.0
            yield b"retry: 2000\n\n"
            told: set[tuple[str, str]] = {("grown", last)}
            while True:
                found = await run_in_threadpool(look)
                for name, mark in found:
                    if (name, mark) not in told:
                        silent = 0.0
                        yield f"event: {name}\nid: {mark}\ndata: {{}}\n\n".encode()
                told = set(found) or told
                if silent >= HEARTBEAT:
                    silent = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(SECONDS)
                silent += SECONDS
        finally:
            self.open -= 1


def of_run(library: Library, key: str) -> Callable[[], list[tuple[str, str]]]:
    """Grown, complete or gone."""

    def look() -> list[tuple[str, str]]:
        try:
            shelf = library.shelf(key)
            mark = shelf.mark()
        except Gone:
            return [("gone", "gone")]
        if shelf.resting:
            return []  # told when the rest is over, so that the last growth is never missed
        found = [("grown", mark)]
        if _complete(shelf, mark):
            found.append(("complete", f"{mark}-complete"))
        return found

    return look


def of_list(library: Library) -> Callable[[], list[tuple[str, str]]]:
    """A new mark when any run changes, comes or goes, and while some were not looked at yet."""
    tries = 0

    def look() -> list[tuple[str, str]]:
        nonlocal tries
        marks = []
        for key, shelf in library.scan().items():
            try:
                marks.append(f"{key}{shelf.mark()}")
            except Gone:
                continue
        if library.pending():
            tries += 1
        return [("grown", f"{hash(tuple(marks)) & (2**63 - 1):x}-{tries}")]

    return look


def _complete(shelf: Shelf, mark: str) -> bool:
    return bool(shelf.summary and shelf.summary["complete"] and shelf.summary_mark == mark)
