"""Visitors of the server: in-process ones for most tests, a real socket where that matters."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import uvicorn
from starlette.types import Message

from gradwatch.server.access import AccessTokens, AuthMiddleware
from gradwatch.server.app import application
from gradwatch.server.runs import Library
from gradwatch.server.serving import Address, settings

HOST = "0123456789abcdef.localhost:8321"
WAIT = 60.0


def session_of(keys: AccessTokens, tokens: list[str]) -> str:
    """The secret that a visitor's cookie carries who opens a new link."""
    keys.announce()
    session = keys.redeem(tokens[-1])
    assert session is not None
    return session


def cookie_of(host: str, session: str) -> str:
    """The Cookie header of a visitor with this session."""
    return "gradwatch_" + "".join(c for c in host if c.isalnum()) + f"={session}"


def visitor(host: str, session: str = "") -> httpx.Client:
    """A visitor who knows, as browsers do, that names under .localhost are this machine."""
    headers = {"host": host, **({"cookie": cookie_of(host, session)} if session else {})}
    base = f"http://127.0.0.1:{host.rpartition(':')[2]}"
    return httpx.Client(base_url=base, headers=headers, timeout=WAIT, follow_redirects=True)


@contextlib.contextmanager
def opened(link: str) -> Iterator[httpx.Client]:
    """A visitor who opened the link."""
    address = httpx.URL(link)
    with visitor(address.netloc.decode()) as client:
        client.get(address.raw_path.decode()).raise_for_status()
        yield client


class Visit:
    """An application over `root` and a client that may or may not hold the cookie."""

    def __init__(self, root: Path) -> None:
        self.tokens: list[str] = []
        self.now = 0.0
        self.keys = AccessTokens(self.tokens.append, clock=lambda: self.now)
        self.library = Library([root])
        self.app: AuthMiddleware = application(self.library, host=HOST, tokens=self.keys)
        self.session = session_of(self.keys, self.tokens)

    @property
    def cookies(self) -> dict[str, str]:
        return {self.app.cookie: self.session}

    def ask(self, method: str, path: str, *, cookie: bool = True, **more: Any) -> httpx.Response:
        """One request; streams are cut off by the caller's choice of path."""

        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport,
                base_url=f"http://{HOST}",
                cookies=self.cookies if cookie else {},
            ) as client:
                return await client.request(method, path, **more)

        return asyncio.run(asked())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def sent(self, targets: list[str]) -> list[tuple[int, bytes]]:
        """Status and body for request targets as they stand on the line, no client tidies them."""

        async def asked(target: str) -> tuple[int, bytes]:
            raw, _, query = target.encode("latin-1").partition(b"?")
            cookie = f"{self.app.cookie}={self.session}".encode()
            scope = {
                "type": "http",
                "http_version": "1.1",
                "method": "GET",
                "path": unquote(raw.decode("latin-1")),
                "raw_path": raw,
                "query_string": query,
                "headers": [(b"host", HOST.encode()), (b"cookie", cookie)],
            }
            told: list[Message] = []

            async def receive() -> Message:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Message) -> None:
                told.append(message)

            await self.app(scope, receive, send)
            return told[0]["status"], b"".join(part.get("body", b"") for part in told[1:])

        async def one_after_another() -> list[tuple[int, bytes]]:
            return [await asked(target) for target in targets]

        return asyncio.run(one_after_another())

    def listing(self) -> list[dict[str, Any]]:
        """The rows of the list, once every run was looked at."""
        end = time.monotonic() + WAIT
        while True:
            runs: list[dict[str, Any]] = self.get("/api/runs").json()["runs"]
            if all(run["line"] != "not looked at yet" for run in runs):
                return runs
            assert time.monotonic() < end, "waited in vain"

    def id_of(self, name: str) -> str:
        runs = self.get("/api/runs").json()["runs"]
        return next(str(run["id"]) for run in runs if run["name"] == name)


@contextlib.contextmanager
def listening(root: Path, port: int = 0) -> Iterator[tuple[str, AccessTokens, list[str]]]:
    """A real server, on a free port if none is given: (name:port, keys, announced tokens)."""
    address = Address.checked("localhost", port, allow_remote=False)
    made = address.bound()
    host = f"{address.name}:{made[0].getsockname()[1]}"
    tokens: list[str] = []
    keys = AccessTokens(tokens.append)
    server = uvicorn.Server(settings(application(Library([root]), host=host, tokens=keys)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": made}, daemon=True)
    thread.start()
    try:
        yield host, keys, tokens
    finally:
        server.should_exit = True
        thread.join(30)
        for listener in made:
            listener.close()


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """The real command in a process of its own, and a visitor who opened its link."""
    words = [sys.executable, "-m", "gradwatch", "serve", str(root), "--port", "0"]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            with opened(process.stdout.readline().strip()) as client:
                yield process, client
        finally:
            process.terminate()
