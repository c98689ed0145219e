"""From a folder and an address to a server that answers, and cuts off who is slow."""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradwatch.errors import Exit, GradwatchError
from gradwatch.server.access import AccessTokens
from gradwatch.server.app import application
from gradwatch.server.runs import Library
from gradwatch.store.places import Place

PORT = 8321
TRIES = 20
WAITING = 128
"""Connections the system may hold before we take them."""
MOST_HEADER_BYTES = 16_384
HEAD_SECONDS = 10.0
"""For a whole request head, from its first byte on or from connecting; trickling does not help."""
READ_SECONDS = 30.0
"""For taking what was sent: a visitor that reads nothing for so long is gone."""
MOST_CONNECTIONS = 512


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Beyond loopback only when the user said so in as many words."""

    host: str
    port: int | None

    @classmethod
    def checked(cls, host: str, port: int | None, *, allow_remote: bool) -> "Address":
        """One concrete address; `localhost` is 127.0.0.1."""
        word = "127.0.0.1" if host == "localhost" else host.strip("[]")
        try:
            address = ipaddress.ip_address(word)
        except ValueError:
            raise GradwatchError(
                f"Expected an address such as 127.0.0.1 as host, got {host!r}.", Exit.USAGE
            ) from None
        if address.is_unspecified or address.is_multicast:
            raise GradwatchError(
                f"{host} means every network of this machine. Name the one address to listen on.",
                Exit.USAGE,
            )
        if not address.is_loopback and not allow_remote:
            raise GradwatchError(
                f"{host} can be reached by other machines. Add --allow-remote if that is wanted "
                "(the link with its token is still needed, but the traffic is not encrypted); "
                "safer is a tunnel: ssh -L.",
                Exit.USAGE,
            )
        return cls(str(address), port)

    def hosts(self, port: int) -> frozenset[str]:
        """The Host headers that are ours, exactly."""
        names = [self._written]
        if ipaddress.ip_address(self.host).is_loopback:
            names.append("localhost")
        return frozenset(f"{name}:{port}" for name in names)

    def link(self, port: int, token: str) -> str:
        """What to open in a browser."""
        return f"http://{self._written}:{port}/?token={token}"

    @property
    def _written(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def bound(self) -> socket.socket:
        """A listening socket: the port asked for, or the first free one after the usual."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        ports = range(PORT, PORT + TRIES) if self.port is None else [self.port]
        problem = ""
        for port in ports:
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.host, port))
                listener.listen(WAITING)
            except OSError as error:
                listener.close()
                problem = error.strerror or str(error)
                continue
            return listener
        raise GradwatchError(
            f"Could not listen on {self.host}, port {ports[0]}: {problem}. Try another --port.",
            Exit.USAGE,
        )


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 with the time limits that uvicorn lacks: slow, idle and excess visitors are cut."""

    _timers: dict[str, asyncio.TimerHandle]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new visitor a few seconds to send a request, or cut one too many."""
        self._timers = {}
        super().connection_made(transport)
        # uvicorn's own limit would wait for a whole request and answer it before it cuts.
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._start("head", HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Stop the clock once the request is complete, start it for the next one."""
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.transport.is_closing():
            self._stop("head")
        else:
            self._start("head", HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """Stop the clock; uvicorn's own keep-alive timer takes over."""
        self._stop("head")
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The visitor does not read: give it some seconds."""
        super().pause_writing()
        self._start("reading", READ_SECONDS)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self._stop("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, which would keep the connection's memory alive."""
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def _start(self, name: str, seconds: float) -> None:
        """Begin to wait, unless it was begun: more bytes give no more time."""
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def settings(app: ASGIApp) -> uvicorn.Config:
    """How the application is served: without upgrades, with limits on size, time and number."""
    return uvicorn.Config(
        app,
        log_level="error",  # a visitor's nonsense is no news for the terminal
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        http=TimeoutProtocol,
        lifespan="off",
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )


def serve(roots: Sequence[Place], address: Address, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` is given each link."""
    listening = address.bound()
    port = int(listening.getsockname()[1])
    tokens = AccessTokens(lambda token: announce(address.link(port, token)))
    app = application(Library(roots), hosts=address.hosts(port), tokens=tokens)
    config = settings(app)
    with contextlib.suppress(OSError):
        os.nice(5)  # the training beside us comes first
    tokens.announce()
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()
