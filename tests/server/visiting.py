"""Visitors of the server: in-process ones for most tests, a real socket where that matters."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gradwatch.server.access import Gate, Keys
from gradwatch.server.app import application
from gradwatch.server.library import Library

HOST = "127.0.0.1:8321"


class Visit:
    """An application over `root` and a client that may or may not hold the cookie."""

    def __init__(self, root: Path) -> None:
        self.tokens: list[str] = []
        self.keys = Keys(self.tokens.append)
        self.library = Library([root])
        self.app: Gate = application(self.library, hosts=frozenset({HOST}), keys=self.keys)

    @property
    def cookies(self) -> dict[str, str]:
        return {self.app.cookie: self.keys.session}

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

    def id_of(self, name: str) -> str:
        runs = self.get("/api/runs").json()["runs"]
        return next(run["id"] for run in runs if run["name"] == name)


@contextlib.contextmanager
def listening(root: Path, port: int = 0) -> Iterator[tuple[str, Keys, list[str]]]:
    """A real server, on a free port if none is given: (host:port, keys, announced tokens)."""
    from gradwatch.server.serving import Address

    address = Address.checked("127.0.0.1", port, allow_remote=False)
    made = address.bound()
    port = int(made.getsockname()[1])
    tokens: list[str] = []
    keys = Keys(tokens.append)
    app = application(Library([root]), hosts=address.hosts(port), keys=keys)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        http="h11",
        ws="none",
        lifespan="off",
        h11_max_incomplete_event_size=16_384,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [made]}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{port}", keys, tokens
    finally:
        server.should_exit = True
        thread.join(30)
        made.close()
