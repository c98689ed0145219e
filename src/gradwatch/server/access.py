"""Who may ask what: every request of every route and method passes here first."""

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradwatch.text import plain

LOG = logging.getLogger(__name__)
METHODS = frozenset({"GET", "HEAD"})
LONGEST_ADDRESS = 2048
PIECE = 64 << 10
OWN_SITES = frozenset({"same-origin", "none"})
SECONDS_BETWEEN_LINKS = 5.0
SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass
class AccessTokens:
    """The token of the link, good once, and the secret the cookie carries afterwards."""

    show: Callable[[str], None]
    """Shows the person at the terminal a new token."""
    clock: Callable[[], float] = time.monotonic
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _announced: float = -1e9
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def announce(self) -> None:
        """Show the token, at most once in a few seconds: visitors must not flood a terminal."""
        with self._lock:
            if self.clock() - self._announced < SECONDS_BETWEEN_LINKS:
                return
            self._announced = self.clock()
            self.show(self._token)

    def redeem(self, token: str) -> bool:
        """Whether this is the token; if so it is used up and another takes its place."""
        with self._lock:
            # In constant time, so that response times do not give the token away byte by byte.
            right = hmac.compare_digest(token.encode(), self._token.encode())
            if right:
                self._token = secrets.token_urlsafe(32)
                self._announced = -1e9
            return right

    def allows(self, cookie: str | None) -> bool:
        """Whether this cookie carries the secret."""
        return cookie is not None and hmac.compare_digest(cookie.encode(), self.session.encode())


class AuthMiddleware:
    """ASGI middleware: host, origin, method, size, then the token; headers on all answers."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], tokens: AccessTokens) -> None:
        self.app = app
        self.hosts = hosts
        self.tokens = tokens
        self.cookie = "gradwatch_" + "".join(c for c in min(hosts) if c.isalnum())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused here; pass everything else on to the application."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        with_headers = _adding(send)
        answer = self._refusal(scope) or self._entrance(scope)
        try:
            await (answer or self.app)(scope, receive, with_headers)
        except Exception as error:  # the answer was sent before; the server lives on
            LOG.error("%s: %s", type(error).__name__, plain(str(error)))

    def _refusal(self, scope: Scope) -> Response | None:
        """What is wrong with the request whoever sent it, or None."""
        headers = Headers(scope=scope)
        # The exact host defeats DNS rebinding: a foreign name that resolves to this address.
        if headers.getlist("host") not in [[host] for host in self.hosts]:
            return Response(status_code=421)
        # Pages of other sites may not even ask: the browser would send our cookie along.
        origins = headers.getlist("origin")
        if origins and origins not in [[f"http://{host}"] for host in self.hosts]:
            return Response(status_code=403)
        if not set(headers.getlist("sec-fetch-site")) <= OWN_SITES:
            return Response(status_code=403)
        if scope["method"] not in METHODS:
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_ADDRESS:
            return Response(status_code=414)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return Response(status_code=413, headers={"connection": "close"})
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        """The first hop trades the token for a cookie; without the cookie nobody enters."""
        request = Request(scope)
        tokens = request.query_params.getlist("token")
        if scope["path"] == "/" and len(tokens) == 1 and self.tokens.redeem(tokens[0]):
            away = RedirectResponse("/", status_code=303)
            away.set_cookie(
                self.cookie, self.tokens.session, httponly=True, samesite="strict", path="/"
            )
            return away
        if self.tokens.allows(request.cookies.get(self.cookie)):
            return None
        if scope["path"] == "/":
            self.tokens.announce()
        return PlainTextResponse(
            "Please open the link that `gradwatch serve` prints in its terminal. "
            "Each link works once; a new one has been printed there.\n",
            status_code=401,
        )


def _adding(send: Send) -> Send:
    """`send`, with the security headers on the first message of the answer."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            ours = {name.encode(): value.encode() for name, value in SECURITY.items()}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message = {**message, "headers": [*kept, *ours.items()]}
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or len(body) <= PIECE:
            await send(message)
            return
        # in pieces, so that a visitor who reads slowly holds one of them and not the whole
        for at in range(0, len(body), PIECE):
            last = at + PIECE >= len(body)
            more = bool(message.get("more_body")) or not last
            await send({**message, "body": body[at : at + PIECE], "more_body": more})

    return with_headers
