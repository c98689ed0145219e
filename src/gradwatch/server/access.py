"""Who may ask what: every request of every route and method passes here first."""

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

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
SESSION_SECONDS = 12 * 3600
MOST_SESSIONS = 16
ALLOWED = "gradwatch.allowed"
"""In the scope of a request with a session: a function that says whether it still lasts."""
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
    """The token of the link, good once, and the sessions such tokens were traded for."""

    show: Callable[[str], None]
    """Shows the person at the terminal a token."""
    clock: Callable[[], float] = time.monotonic
    _token: str = ""
    _sessions: dict[str, float] = field(default_factory=dict)
    """When each ends, by the secret its cookie carries; the oldest first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def announce(self) -> None:
        """Show the token; a new one if the last was used up."""
        with self._lock:
            self._token = self._token or secrets.token_urlsafe(32)
            self.show(self._token)

    def redeem(self, token: str) -> str | None:
        """The secret of a new session if this is the token, which is then used up."""
        with self._lock:
            if not self._token or not _same(token, self._token):
                return None
            self._token = ""
            while len(self._sessions) >= MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            session = secrets.token_urlsafe(32)
            self._sessions[session] = self.clock() + SESSION_SECONDS
            return session

    def allows(self, cookie: str) -> bool:
        """Whether this cookie carries the secret of a session that lasts."""
        with self._lock:
            ends = [end for session, end in self._sessions.items() if _same(cookie, session)]
        return any(self.clock() < end for end in ends)


def _same(given: str, secret: str) -> bool:
    """In constant time, so that response times do not give the secret away byte by byte."""
    return hmac.compare_digest(given.encode(), secret.encode())


class AuthMiddleware:
    """ASGI middleware: host, origin, method, size, then the token; headers on all answers."""

    def __init__(self, app: ASGIApp, *, host: str, tokens: AccessTokens) -> None:
        self.app = app
        self.host = host
        self.tokens = tokens
        self.cookie = "gradwatch_" + "".join(c for c in host if c.isalnum())

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
        if headers.getlist("host") != [self.host]:
            return Response(status_code=421)
        # Pages of other sites may not even ask: the browser would send our cookie along.
        if headers.getlist("origin") not in ([], [f"http://{self.host}"]):
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
        given = request.query_params.getlist("token")
        # Only GET: a HEAD, with which programs look at links beforehand, leaves the token good.
        if scope["method"] == "GET" and scope["path"] == "/" and len(given) == 1:
            session = self.tokens.redeem(given[0])
            if session is not None:
                away = RedirectResponse("/", status_code=303)
                away.set_cookie(
                    self.cookie, session, SESSION_SECONDS, httponly=True, samesite="strict"
                )
                return away
        cookie = request.cookies.get(self.cookie, "")
        if self.tokens.allows(cookie):
            scope[ALLOWED] = partial(self.tokens.allows, cookie)
            return None
        return PlainTextResponse(
            "Please open the link that `gradwatch serve` has printed. It works once. For a new one "
            "press Enter in that terminal; if it runs without a terminal, restart it.\n",
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
