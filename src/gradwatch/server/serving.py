"""From a folder and an address to a server that answers, and cuts off who is slow."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradwatch.errors import Exit, GradwatchError
from gradwatch.server.access import ALLOWED, AccessTokens
from gradwatch.server.app import application
from gradwatch.server.runs import Library
from gradwatch.store.places import Place

PORT = 8321
TRIES = 20
WAITING = 128
"""Connections the system may hold before we take them, and the most that are taken at a time."""
MOST_HEADER_BYTES = 16_384
HEAD_SECONDS = 10.0
"""For a whole request head, from its first byte on or from connecting; trickling does not help."""
READ_SECONDS = 30.0
"""For taking what was sent: a visitor that reads nothing for so long is gone."""
MOST_CONNECTIONS = 512
NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Beyond loopback only when the user said so in as many words."""

    host: str
    port: int | None
    name: str
    """What a browser calls us."""

    @classmethod
    def checked(cls, host: str, port: int | None, *, allow_remote: bool) -> "Address":
        """One concrete address; `localhost` is 127.0.0.1 under a name that nobody can guess.

        Browsers send a cookie to every port of a host, so the host must be ours alone.
        """
        if host == "localhost":
            return cls("127.0.0.1", port, f"{secrets.token_hex(8)}.localhost")
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            raise GradwatchError(
                f"Expected localhost or an address such as 127.0.0.1 as host, got {host!r}.",
                Exit.USAGE,
            ) from None
        address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:0.0.0.0 is 0.0.0.0
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
        return cls(str(address), port, f"[{address}]" if address.version == 6 else str(address))

    @property
    def caution(self) -> str:
        """What is less safe here than at `localhost`, in a sentence; empty there."""
        if self.name.endswith(".localhost"):
            return ""
        if ipaddress.ip_address(self.host).is_loopback:
            return (
                f"Browsers show this page's cookie to every port of {self.name}; "
                "without --host they do not."
            )
        return (
            f"Other machines can reach {self.name}, and nothing is encrypted: who can listen on "
            "the way reads the link and the page. Safer is a tunnel: ssh -L."
        )

    def bound(self) -> list[socket.socket]:
        """Listening sockets: on the port asked for, or the first free one after the usual."""
        hosts = [self.host]
        if self.name.endswith(".localhost"):
            hosts.append("::1")  # where browsers look first: nobody else may answer there
        usual = range(PORT, PORT + TRIES) if self.port is None else [0] * TRIES
        ports = [self.port] if self.port else usual
        problem = ""
        for port in ports:
            try:
                return _listening(hosts, port)
            except OSError as error:
                problem = str(error.strerror or error).partition(" (")[0]
        raise GradwatchError(
            f"Could not listen on {' and '.join(hosts)}, port {ports[0]}: {problem}. "
            "Try another --port.",
            Exit.USAGE,
        )


def _listening(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """A socket for each host, all on one port; only the first host must exist."""
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                listener = socket.create_server((host, port), family=family, backlog=WAITING)
            except OSError as error:
                if made and error.errno in NO_SUCH_ADDRESS:
                    continue
                raise
            made.append(stack.enter_context(listener))
            port = int(listener.getsockname()[1])
        stack.pop_all()
    return made


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 with the time limits that uvicorn lacks: slow, idle and excess visitors are cut."""

    _timers: dict[str, asyncio.TimerHandle]
    _since: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give a new visitor a few seconds to send a request; of too many, cut one."""
        self._timers = {}
        self._since = self.loop.time()
        super().connection_made(transport)
        self._start("head", HEAD_SECONDS)
        # uvicorn's own limit would wait for a whole request and answer it before it cuts.
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        """Cut the oldest line without a session, so that strangers lock nobody out.

        Whoever has a session shows it long before as many new lines have come as there is room for.
        """
        lines = [line for line in self.connections if isinstance(line, TimeoutProtocol)]
        strangers = [line for line in lines if not (line.scope and ALLOWED in line.scope)]
        oldest = min(strangers, key=lambda line: line._since)
        self.connections.discard(oldest)  # as it will be anyway, but not before the next comes
        oldest.transport.abort()

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
        backlog=WAITING,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )


def has_terminal() -> bool:
    """Whether somebody can press a key."""
    return sys.stdin is not None and sys.stdin.isatty()


def _at_each_line(do: Callable[[], None]) -> None:
    """Call `do` whenever Enter is pressed, for ever."""
    # In the background a read must fail, which we wait out, and not stop the whole program.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
    while True:
        typed = b""
        with contextlib.suppress(OSError):
            typed = os.read(sys.stdin.fileno(), 4096)
        if typed:
            do()
        else:
            time.sleep(1)


def serve(roots: Sequence[Place], address: Address, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` is given the link, and a new one at each Enter."""
    listening = address.bound()
    host = f"{address.name}:{listening[0].getsockname()[1]}"
    tokens = AccessTokens(lambda token: announce(f"http://{host}/?token={token}"))
    app = application(Library(roots), host=host, tokens=tokens)
    config = settings(app)
    with contextlib.suppress(OSError):
        os.nice(5)  # the training beside us comes first
    tokens.announce()
    if has_terminal():
        threading.Thread(target=_at_each_line, args=(tokens.announce,), daemon=True).start()
    try:
        uvicorn.Server(config).run(sockets=listening)
    finally:
        for listener in listening:
            listener.close()
