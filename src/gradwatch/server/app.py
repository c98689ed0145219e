"""The routes: a page, two files, and what they fetch. Nothing here writes, starts or loads code."""

import logging
import secrets
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gradwatch.errors import GradwatchError
from gradwatch.server.access import Gate, Keys
from gradwatch.server.library import Library
from gradwatch.server.made import Made
from gradwatch.server.shelf import Gone, Shelf
from gradwatch.server.stream import Streams, of_list, of_run
from gradwatch.server.wish import BadWish, Wish
from gradwatch.text import plain
from gradwatch.views.model import to_json
from gradwatch.views.page import asset, live_shell

LOG = logging.getLogger(__name__)
FORMAT = 1


class Pages:
    """The answers, each a method; `routes` is the whole table."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.streams = Streams()

    def routes(self) -> Sequence[Route]:
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
        return Response(live_shell(), media_type="text/html")

    async def script(self, request: Request) -> Response:
        return Response(asset("page.js"), media_type="text/javascript")

    async def style(self, request: Request) -> Response:
        return Response(asset("page.css"), media_type="text/css")

    async def runs(self, request: Request) -> Response:
        found = await run_in_threadpool(self.library.listing)
        text = to_json({"format": FORMAT, "runs": found})
        return Response(text, media_type="application/json")

    async def view(self, request: Request) -> Response:
        try:
            wish = Wish.of(request.query_params)
        except BadWish as error:
            return _sorry(str(error), 400)
        shelf = await run_in_threadpool(self.library.shelf, request.path_params["key"])
        made = await run_in_threadpool(shelf.view, wish)
        return _told(shelf, made, request)

    async def run_events(self, request: Request) -> Response:
        return self._stream(request, run=request.path_params["key"])

    async def list_events(self, request: Request) -> Response:
        return self._stream(request, run=None)

    def _stream(self, request: Request, run: str | None) -> Response:
        if self.streams.full:
            return _sorry("Too many pages are open; close one.", 503)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        look = of_list(self.library) if run is None else of_run(self.library, run)
        last = request.headers.get("last-event-id", "")[:64]
        return StreamingResponse(self.streams.events(look, last), media_type="text/event-stream")


def application(library: Library, *, hosts: frozenset[str], keys: Keys) -> Gate:
    """The whole application; the gate stands outside everything, errors and unknown routes too."""
    inside = Starlette(
        routes=list(Pages(library).routes()),
        exception_handlers={
            Gone: _gone,
            GradwatchError: _unreadable,
            404: _nothing,
            500: _failed,
        },
    )
    inside.router.redirect_slashes = False
    return Gate(inside, hosts=hosts, keys=keys)


def _told(shelf: Shelf, made: Made, request: Request) -> Response:
    """Nothing where the page has it already; only what changed where it asks for that."""
    headers = {"etag": f'"{made.tag}"'}
    has = request.headers.get("if-none-match", "").strip('"')
    if has == made.tag:
        return Response(status_code=304, headers=headers)
    changed = None
    if request.query_params.get("changes") == "1" and has:
        changed = shelf.told.changed(made, has)
    if changed is not None:
        headers["x-gradwatch-since"] = has
    shelf.told.remember(made)
    return Response(made.text(changed), media_type="application/json", headers=headers)


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
