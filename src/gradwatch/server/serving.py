"""From a folder and an address to a server that answers."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gradwatch.errors import Exit, GradwatchError
from gradwatch.server.access import Keys
from gradwatch.server.app import application
from gradwatch.server.library import Library
from gradwatch.server.line import Line

PORT = 8321
TRIES = 20
WAITING = 128
"""Connections the system may hold before we take them."""
MOST_HEADER_BYTES = 16_384


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
            found = ipaddress.ip_address(word)
        except ValueError:
            raise GradwatchError(
                f"Expected an address such as 127.0.0.1 as host, got {host!r}.", Exit.USAGE
            ) from None
        if found.is_unspecified or found.is_multicast:
            raise GradwatchError(
                f"{host} means every network of this machine. Name the one address to listen on.",
                Exit.USAGE,
            )
        if not found.is_loopback and not allow_remote:
            raise GradwatchError(
                f"{host} can be reached by other machines. Add --allow-remote if that is wanted "
                "(the link with its token is still needed, but the traffic is not encrypted); "
                "safer is a tunnel: ssh -L.",
                Exit.USAGE,
            )
        return cls(str(found), port)

    def hosts(self, port: int) -> frozenset[str]:
        """The Host headers that are ours, exactly."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        names = {own}
        if ipaddress.ip_address(self.host).is_loopback:
            names |= {"localhost"}
        return frozenset(f"{name}:{port}" for name in names)

    def link(self, port: int, token: str) -> str:
        own = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{own}:{port}/?token={token}"

    def bound(self) -> socket.socket:
        """A listening socket: the port asked for, or the first free one after the usual."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        ports = range(PORT, PORT + TRIES) if self.port is None else [self.port]
        problem = ""
        for port in ports:
            made = socket.socket(family, socket.SOCK_STREAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                made.bind((self.host, port))
                made.listen(WAITING)
            except OSError as error:
                made.close()
                problem = error.strerror or str(error)
                continue
            return made
        raise GradwatchError(
            f"Could not listen on {self.host}, port {ports[0]}: {problem}. Try another --port.",
            Exit.USAGE,
        )


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
        http=Line,
        lifespan="off",
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )


def serve(roots: Sequence[Path], address: Address, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` is given each link."""
    listening = address.bound()
    port = int(listening.getsockname()[1])
    keys = Keys(lambda token: announce(address.link(port, token)))
    app = application(Library(roots), hosts=address.hosts(port), keys=keys)
    config = settings(app)
    with contextlib.suppress(OSError):
        os.nice(5)  # the training beside us comes first
    keys.tell()
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()
