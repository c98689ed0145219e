"""Slow, idle and too many visitors: each is cut off, and nobody else waits for them."""

import contextlib
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.server.visiting import WAIT, listening, served
from tests.views.samples import network
from tests.views.stored import stored
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradwatch.server import app, serving

HALF = b"GET / HTTP/1.1\r\nHost: "


def connected(host: str) -> socket.socket:
    name, port = host.split(":")
    return socket.create_connection((name, int(port)), timeout=WAIT)


def cut_off(visitor: socket.socket) -> bool:
    """Wait until the other side closes; False where it does not within the wait."""
    with contextlib.suppress(ConnectionError):
        try:
            while visitor.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


def asked(host: str) -> int:
    """The status a well-mannered visitor without a cookie gets; 401 when all is well.

    On a busy machine even such a visitor may be slower than the short limits of these tests.
    """
    until = time.monotonic() + WAIT
    while True:
        try:
            return httpx.get(f"http://{host}/", timeout=WAIT).status_code
        except httpx.TransportError:
            if time.monotonic() > until:
                raise


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(serving, "READ_SECONDS", 0.5)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("said", [b"", b"G", HALF, HALF + b"x\r\nX: y\r\n"])
def test_a_head_that_does_not_end_is_cut_off(tmp_path: Path, said: bytes) -> None:
    with listening(tmp_path) as (host, _, _), connected(host) as visitor:
        visitor.sendall(said)
        assert cut_off(visitor)
        assert asked(host) == 401


@pytest.mark.usefixtures("hasty")
def test_trickling_does_not_help(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _), connected(host) as visitor:
        until = time.monotonic() + WAIT
        gone = False
        while not gone and time.monotonic() < until:
            try:
                visitor.sendall(b"a")
                gone = bool(select.select([visitor], [], [], 0.02)[0]) and not visitor.recv(1)
            except ConnectionError:
                gone = True
        assert gone


@pytest.mark.usefixtures("hasty")
def test_a_second_head_on_a_kept_line_has_the_same_limit(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _):
        for _ in range(20):  # until the first head was in time
            with connected(host) as visitor, contextlib.suppress(ConnectionError):
                visitor.sendall(HALF + host.encode() + b"\r\n\r\n")
                if visitor.recv(12) == b"HTTP/1.1 401":
                    visitor.sendall(HALF)
                    assert cut_off(visitor)
                    return
        pytest.fail("no head was ever in time")


@pytest.mark.usefixtures("hasty")
def test_without_the_limit_a_half_head_holds_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: uvicorn alone waits for ever."""
    monkeypatch.setattr(serving, "TimeoutProtocol", H11Protocol)
    with listening(tmp_path) as (host, _, _), connected(host) as visitor:
        visitor.sendall(HALF)
        visitor.settimeout(2)
        assert not cut_off(visitor)


@contextlib.contextmanager
def crowd(host: str, size: int, said: bytes = HALF) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        visitors = [stack.enter_context(connected(host)) for _ in range(size)]
        for visitor in visitors:
            with contextlib.suppress(ConnectionError):
                visitor.sendall(said)
        yield visitors


def test_two_hundred_slow_heads_hold_nobody_up(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _), crowd(host, 200):
        assert [asked(host) for _ in range(5)] == [401] * 5


def test_one_too_many_is_turned_away_and_room_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 5)
    with listening(tmp_path) as (host, _, _):
        with crowd(host, 5), connected(host) as sixth:
            assert cut_off(sixth)
        status = 0
        until = time.monotonic() + WAIT
        while status != 401 and time.monotonic() < until:  # until the server saw them leave
            with contextlib.suppress(httpx.TransportError):
                status = asked(host)
        assert status == 401


def large_page(host: str, cookie: str) -> bytes:
    return f"GET /page.js HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode()


def cookie_of(host: str, session: str) -> str:
    first = min(host, host.replace("127.0.0.1", "localhost"))
    return "gradwatch_" + "".join(c for c in first if c.isalnum()) + f"={session}"


@pytest.mark.usefixtures("hasty")
def test_who_reads_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.server.app.asset", lambda _: b"a" * (32 << 20))
    lost = threading.Event()

    class Seen(serving.TimeoutProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(serving, "TimeoutProtocol", Seen)
    with listening(tmp_path) as (host, keys, _):
        name, port = host.split(":")
        with socket.socket() as visitor:
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            visitor.connect((name, int(port)))
            visitor.sendall(large_page(host, cookie_of(host, keys.session)))
            assert lost.wait(WAIT)
        assert asked(host) == 401


def test_more_streams_than_allowed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MOST_STREAMS", 3)
    with listening(tmp_path) as (host, keys, _):
        headers = {"cookie": cookie_of(host, keys.session)}
        with httpx.Client(base_url=f"http://{host}", timeout=WAIT, headers=headers) as client:
            with contextlib.ExitStack() as stack:
                opened = [
                    stack.enter_context(client.stream("GET", "/api/events")) for _ in range(3)
                ]
                read = [found.iter_raw() for found in opened]
                assert all(next(lines).startswith(b"retry: 2000\n\n") for lines in read)
                with client.stream("GET", "/api/events") as fourth:
                    assert fourth.status_code == 503
            status = 503
            until = time.monotonic() + WAIT
            while status == 503 and time.monotonic() < until:
                with client.stream("GET", "/api/events") as found:
                    status = found.status_code
            assert status == 200


def peak_of(process: subprocess.Popen[str]) -> float:
    """MiB a process had in memory at most."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def listen(client: httpx.Client, path: str, ended: threading.Event) -> None:
    """A page that stays open, until the server ends."""
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream(
            "GET", client.base_url.join(path), cookies=client.cookies, timeout=WAIT
        ) as found,
    ):
        assert found.status_code == 200
        for _ in found.iter_raw():
            if ended.is_set():
                return


@pytest.mark.long
@pytest.mark.timing
def test_fifty_live_and_two_hundred_slow_visitors(tmp_path: Path) -> None:
    """5,000 layers × 200 steps, a minute: no error, p95 ≤ 200 ms, p99 ≤ 500 ms.

    The crowd may add 64 MiB. What the server took before (most of it the diagnosis) is printed.
    """
    stored(network(5000, 200), tmp_path / "one", "one")
    with served(tmp_path) as (process, client), contextlib.ExitStack() as stack:
        (run,) = client.get("/api/runs").json()["runs"]
        address = f"/api/runs/{run['id']}"
        client.get(f"{address}/view")
        before = peak_of(process)
        ended = threading.Event()
        arguments = (client, f"{address}/events", ended)
        for _ in range(50):
            threading.Thread(target=listen, args=arguments, daemon=True).start()
        host = f"{client.base_url.host}:{client.base_url.port}"
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        stack.enter_context(crowd(host, 100))
        stack.enter_context(crowd(host, 100, large_page(host, cookie)))
        spent, wrong = [], 0
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for path in (f"{address}/view?sections=heat", "/api/runs", "/"):
                begun = time.monotonic()
                wrong += client.get(path).status_code != 200
                spent.append(time.monotonic() - begun)
                time.sleep(0.05)
        ended.set()
        after = peak_of(process)
    p95, p99 = 1e3 * np.percentile(spent, [95, 99])
    told = f"{len(spent)} requests, {wrong} wrong, p95 {p95:.0f} ms, p99 {p99:.0f} ms"
    print(f"{told}, {before:.0f} MiB before, {after:.0f} MiB after")
    assert wrong == 0
    assert p95 <= 200, told
    assert p99 <= 500, told
    assert after - before <= 64
