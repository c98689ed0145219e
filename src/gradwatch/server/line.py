"""One visitor's connection: who is slow, idle or one too many is cut off."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""For a whole request head, from its first byte on or from connecting; trickling does not help."""
READ_SECONDS = 30.0
"""For taking what was sent: a visitor that reads nothing for so long is gone."""
MOST_CONNECTIONS = 512


class Line(H11Protocol):
    """HTTP/1.1 with the time limits that uvicorn has not."""

    _timers: dict[str, asyncio.TimerHandle]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._timers = {}
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._start("head", HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.transport.is_closing():
            self._stop("head")
        else:
            self._start("head", HEAD_SECONDS)

    def on_response_complete(self) -> None:
        self._stop("head")
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("reading", READ_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("reading")

    def connection_lost(self, exc: Exception | None) -> None:
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
