"""The routes: a page, two files, the data they fetch, and events for a page when a run grows.

Nothing here writes, starts or loads code.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gradwatch.errors import GradwatchError
from gradwatch.server.access import ALLOWED, AccessTokens, AuthMiddleware
from gradwatch.server.encoded import BadRequest, EncodedView, ViewRequest
from gradwatch.server.runs import Library, RunGone, ServedRun
from gradwatch.text import plain
from gradwatch.views.model import to_json
from gradwatch.views.page import asset, live_shell

LOG = logging.getLogger(__name__)
FORMAT = 1
SECONDS = 1.0
HEARTBEAT = 15
"""Seconds of silence after which a comment is sent, so that a dead line is noticed."""
MOST_STREAMS = 64


class Pages:
    """The answers, each a method; `routes` is the whole table."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.streams = 0
        """How many event streams are open; changed on the event loop alone, so without a lock."""

    def routes(self) -> Sequence[Route]:
        """Every address the server answers."""
        return [
            Route("/", self.page),
            Route("/page.js", self.script),
            Route("/page.css", self.style),
            Route("/api/runs", self.runs),
            Route("/api/events", self.list_events),
            Route("/api/runs/{key}/view", self.view),
            Route("/api/runs/{key}/events", self.run_events),
        ]

    async def page(self, request: Request) -> Response:
        """The page itself, without data: its script fetches those."""
        return Response(live_shell(), media_type="text/html")

    async def script(self, request: Request) -> Response:
        """The page's JavaScript."""
        return Response(asset("page.js"), media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        """The page's style sheet."""
        return Response(asset("page.css"), media_type="text/css")

    async def runs(self, request: Request) -> Response:
        """The list of runs as JSON."""
        listing = await run_in_threadpool(self.library.listing)
        text = to_json({"format": FORMAT, "runs": listing})
        return Response(text, media_type="application/json")

    async def view(self, request: Request) -> Response:
        """One run's view model as JSON: all of it, some sections, or what changed."""
        try:
            asked = ViewRequest.of(request.query_params)
        except BadRequest as error:
            return _sorry(str(error), 400)
        run = await run_in_threadpool(self.library.run, request.path_params["key"])
        return _answer(run, await run_in_threadpool(run.view, asked), request)

    async def run_events(self, request: Request) -> ASGIApp:
        """A stream of events: one run has grown, is complete, is gone."""
        return self._stream(request, run=request.path_params["key"])

    async def list_events(self, request: Request) -> ASGIApp:
        """A stream of events: any run has changed, come or gone."""
        return self._stream(request, run=None)

    def _stream(self, request: Request, run: str | None) -> ASGIApp:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        look = of_list(self.library) if run is None else of_run(self.library, run)
        last = request.headers.get("last-event-id", "")[:64]
        events = _events(look, last, request.scope[ALLOWED])

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            # Looked at and counted without a pause between: a burst finds the number as it is.
            if self.streams >= MOST_STREAMS:
                full = _sorry("Too many pages are open; close one.", 503)
                return await full(scope, receive, send)
            self.streams += 1
            try:
                stream = StreamingResponse(events, media_type="text/event-stream")
                await stream(scope, receive, send)
            finally:
                self.streams -= 1

        return counted


def application(library: Library, *, host: str, tokens: AccessTokens) -> AuthMiddleware:
    """The whole application; the token is asked for everywhere, errors and unknown routes too."""
    inside = Starlette(
        routes=list(Pages(library).routes()),
        exception_handlers={
            RunGone: _gone,
            GradwatchError: _unreadable,
            404: _nothing,
            500: _failed,
        },
    )
    inside.router.redirect_slashes = False
    return AuthMiddleware(inside, host=host, tokens=tokens)


def _answer(run: ServedRun, view: EncodedView, request: Request) -> Response:
    """Nothing where the page has it already; only what changed where it asks for that."""
    headers = {"etag": f'"{view.etag}"'}
    has = request.headers.get("if-none-match", "").strip('"')
    if has == view.etag:
        return Response(status_code=304, headers=headers)
    changed = None
    if request.query_params.get("changes") == "1" and has:
        changed = run.sent.changed(view, has)
    if changed is not None:
        headers["x-gradwatch-since"] = has
    run.sent.remember(view)
    text = view.text if changed is None else view.text_of(changed)
    return Response(text, media_type="application/json", headers=headers)


def _sorry(sentence: str, status: int) -> Response:
    return JSONResponse({"error": sentence}, status_code=status)


async def _gone(request: Request, error: Exception) -> Response:
    return _sorry("This run is no longer there.", 404)


async def _nothing(request: Request, error: Exception) -> Response:
    return _sorry("There is nothing at this address.", 404)


async def _unreadable(request: Request, error: Exception) -> Response:
    number = secrets.token_hex(4)
    LOG.warning("%s: %s", number, plain(str(error)))
    return _sorry(f"This run cannot be read; the terminal says why under {number}.", 422)


async def _failed(request: Request, error: Exception) -> Response:
    number = secrets.token_hex(4)
    LOG.error("%s: %s: %s", number, type(error).__name__, plain(str(error)))
    return _sorry(f"Something failed here; the terminal says more under {number}.", 500)


# -- server-sent events ---------------------------------------------------------------------------


class ServerEvent(NamedTuple):
    """One server-sent event: what happened, since which mark, and details as JSON."""

    name: str
    mark: str
    data: str = "{}"

    def encoded(self) -> bytes:
        """Progress has no id: a page that comes back resumes after what grew, not after that."""
        number = f"id: {self.mark}\n" if self.mark else ""
        return f"event: {self.name}\n{number}data: {self.data}\n\n".encode()


Look = Callable[[], list[ServerEvent]]


async def _events(look: Look, last: str, allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Send what `look` returns where it is new; never the same event twice in a row."""
    silent = 0.0
    yield b"retry: 2000\n\n"
    # A page that reconnects names the last event it has had.
    sent: set[ServerEvent] = {ServerEvent("grown", last)}
    while allowed():
        events = await run_in_threadpool(look)
        for event in events:
            if event not in sent:
                silent = 0.0
                yield event.encoded()
        sent = set(events) or sent
        if silent >= HEARTBEAT:
            silent = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(SECONDS)
        silent += SECONDS


def of_run(library: Library, key: str) -> Look:
    """Grown, complete or gone; how far the long work is, and that it is ready."""

    def look() -> list[ServerEvent]:
        try:
            run = library.run(key)
            mark = run.mark()
        except RunGone:
            return [ServerEvent("gone", "gone")]
        if run.busy:
            progress = {"what": run.busy, "done": None}
            return [ServerEvent("progress", "", to_json(progress))]
        if run.resting:  # what came meanwhile is told when the rest is over: none is missed
            return [ServerEvent("grown", run.shown)] if run.shown else []
        events = [ServerEvent("grown", mark)]
        if run.ready == mark:
            events.append(ServerEvent("ready", f"{mark}-ready"))
        if run.summary and run.summary["complete"] and run.summary_mark == mark:
            events.append(ServerEvent("complete", f"{mark}-complete"))
        return events

    return look


def of_list(library: Library) -> Look:
    """A new mark when any run changes, comes or goes, and while some were not looked at yet."""
    tries = 0

    def look() -> list[ServerEvent]:
        nonlocal tries
        marks = []
        for key, run in library.scan().items():
            try:
                marks.append(f"{key}{run.mark()}")
            except RunGone:
                continue
        if library.pending():
            tries += 1
        # `hash` of text differs between processes: after a restart every page is told once more.
        return [ServerEvent("grown", f"{hash(tuple(marks)) & (2**63 - 1):x}-{tries}")]

    return look
