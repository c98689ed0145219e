"""Slow, idle and too many visitors: each is cut off, and nobody else waits for them."""

import contextlib
import errno
import re
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
from tests.server.visiting import WAIT, cookie_of, listening, served, session_of, visitor
from tests.views.samples import network
from tests.views.stored import stored
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradwatch.errors import GradwatchError
from gradwatch.server import app, serving
from gradwatch.server.serving import Address

HALF = b"GET / HTTP/1.1\r\nHost: "


def connected(host: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), timeout=WAIT)


def cut_off(line: socket.socket) -> bool:
    """Wait until the other side closes; False where it does not within the wait."""
    with contextlib.suppress(ConnectionError):
        try:
            while line.recv(65536):
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
            with visitor(host) as client:
                return client.get("/").status_code
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
    with listening(tmp_path) as (host, _, _), connected(host) as line:
        line.sendall(said)
        assert cut_off(line)
        assert asked(host) == 401


@pytest.mark.usefixtures("hasty")
def test_trickling_does_not_help(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _), connected(host) as line:
        until = time.monotonic() + WAIT
        gone = False
        while not gone and time.monotonic() < until:
            try:
                line.sendall(b"a")
                gone = bool(select.select([line], [], [], 0.02)[0]) and not line.recv(1)
            except ConnectionError:
                gone = True
        assert gone


@pytest.mark.usefixtures("hasty")
def test_a_second_head_on_a_kept_line_has_the_same_limit(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _):
        for _ in range(20):  # until the first head was in time
            with connected(host) as line, contextlib.suppress(ConnectionError):
                line.sendall(HALF + host.encode() + b"\r\n\r\n")
                if line.recv(12) == b"HTTP/1.1 401":
                    line.sendall(HALF)
                    assert cut_off(line)
                    return
        pytest.fail("no head was ever in time")


@pytest.mark.usefixtures("hasty")
def test_without_the_limit_a_half_head_holds_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: uvicorn alone waits for ever."""
    monkeypatch.setattr(serving, "TimeoutProtocol", H11Protocol)
    with listening(tmp_path) as (host, _, _), connected(host) as line:
        line.sendall(HALF)
        line.settimeout(2)
        assert not cut_off(line)


@contextlib.contextmanager
def crowd(host: str, size: int, said: bytes = HALF) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connected(host)) for _ in range(size)]
        for line in lines:
            with contextlib.suppress(ConnectionError):
                line.sendall(said)
        yield lines


def test_two_hundred_slow_heads_hold_nobody_up(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _), crowd(host, 200):
        assert [asked(host) for _ in range(5)] == [401] * 5


def test_of_too_many_the_oldest_stranger_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 5)
    with (
        listening(tmp_path) as (host, keys, tokens),
        visitor(host, session_of(keys, tokens)) as owner,
        owner.stream("GET", "/api/events") as events,
        crowd(host, 4) as strangers,
    ):
        assert events.status_code == 200
        read = events.iter_lines()
        assert next(read) == "retry: 2000"
        assert owner.get("/").status_code == 200  # by a sixth connection
        assert cut_off(strangers[0])
        assert asked(host) == 401
        assert cut_off(strangers[1])
        assert not select.select([strangers[-1]], [], [], 0.1)[0]  # the others stay, the stream too
        assert next(line for line in read if line.startswith("event"))


def test_when_all_have_a_session_one_too_many_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 2)
    with (
        listening(tmp_path) as (host, keys, tokens),
        visitor(host, session_of(keys, tokens)) as owner,
        contextlib.ExitStack() as stack,
    ):
        opened = [stack.enter_context(owner.stream("GET", "/api/events")) for _ in range(2)]
        assert [stream.status_code for stream in opened] == [200, 200]
        with connected(host) as third:
            assert cut_off(third)


def renewing(port: int, size: int, ended: threading.Event) -> None:
    """Somebody who holds so many connections without a word, and makes a new one for each lost."""
    lines: dict[int, socket.socket] = {}
    poll = select.poll()
    while not ended.is_set():
        while len(lines) < size:
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", port))
            lines[line.fileno()] = line
            poll.register(line, select.POLLIN)
        for number, _ in poll.poll(50):
            poll.unregister(number)
            lines.pop(number).close()
    for line in lines.values():
        line.close()


@pytest.mark.security
def test_idle_strangers_do_not_lock_the_owner_out(tmp_path: Path) -> None:
    """The real command; twenty visits on a connection of their own, each within two seconds."""
    ended = threading.Event()
    with served(tmp_path) as (_, client):
        port = client.base_url.port
        holding = threading.Thread(target=renewing, args=(port, 600, ended))
        holding.start()
        try:
            time.sleep(1)
            spent = []
            for _ in range(20):
                begun = time.monotonic()
                assert client.get("/", headers={"connection": "close"}).status_code == 200
                spent.append(time.monotonic() - begun)
        finally:
            ended.set()
            holding.join(WAIT)
    print(f"600 idle strangers: slowest visit {max(spent):.2f} s")
    assert max(spent) <= 2


def large_page(host: str, cookie: str) -> bytes:
    return f"GET /page.js HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode()


@pytest.mark.usefixtures("hasty")
def test_who_reads_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.server.app.asset", lambda _: b"a" * (32 << 20))
    lost = threading.Event()

    class Seen(serving.TimeoutProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(serving, "TimeoutProtocol", Seen)
    with listening(tmp_path) as (host, keys, tokens):
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(("127.0.0.1", int(host.rpartition(":")[2])))
            line.sendall(large_page(host, cookie_of(host, session_of(keys, tokens))))
            assert lost.wait(WAIT)
        assert asked(host) == 401


def test_more_streams_than_allowed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MOST_STREAMS", 3)
    with (
        listening(tmp_path) as (host, keys, tokens),
        visitor(host, session_of(keys, tokens)) as client,
    ):
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(client.stream("GET", "/api/events")) for _ in range(3)]
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


def test_a_burst_opens_no_more_streams_than_allowed(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, keys, tokens):
        cookie = cookie_of(host, session_of(keys, tokens))
        head = f"GET /api/events HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
        with crowd(host, 200, head.encode()) as pages:
            answers = [page.recv(12) for page in pages]
    assert answers.count(b"HTTP/1.1 200") == app.MOST_STREAMS
    assert answers.count(b"HTTP/1.1 503") == 200 - app.MOST_STREAMS


def test_only_loopback_without_the_flag() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2", "::ffff:127.0.0.1"):
        Address.checked(host, 0, allow_remote=False)
    for host in ("192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"):
        with pytest.raises(GradwatchError, match="--allow-remote"):
            Address.checked(host, 0, allow_remote=False)
        Address.checked(host, 0, allow_remote=True)


EVERY = """0.0.0.0 :: [::] ::0 0:0:0:0:0:0:0:0 ::0.0.0.0 ::ffff:0.0.0.0 ::ffff:0:0 [::ffff:0:0]
    0:0:0:0:0:ffff:0:0 ::%1 ::ffff:0:0%1 224.0.0.1 ::ffff:224.0.0.1 ff02::1"""
NO_ADDRESS = ["0", "0x0", "00.0.0.0", "000.000.000.000", "0x0.0.0.0", "0.0", "127.1", "localhost."]


@pytest.mark.parametrize("host", [*EVERY.split(), *NO_ADDRESS, "evil.test", "", " ", "*"])
def test_every_network_is_refused_however_it_is_written(host: str) -> None:
    with pytest.raises(GradwatchError, match="every network" if host in EVERY.split() else "got"):
        Address.checked(host, 0, allow_remote=True)


def test_the_usual_name_is_a_new_one_each_time_and_others_are_cautioned() -> None:
    names = {Address.checked("localhost", 0, allow_remote=False).name for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"[0-9a-f]{16}\.localhost", name) for name in names)
    assert Address.checked("localhost", 0, allow_remote=True).caution == ""
    plain = Address.checked("::1", 0, allow_remote=False)
    assert plain.name == "[::1]"
    assert "every port of [::1]" in plain.caution
    assert "ssh -L" in Address.checked("192.0.2.1", 0, allow_remote=True).caution


def test_a_taken_port_is_said_and_the_usual_one_moves_on() -> None:
    first = Address.checked("localhost", None, allow_remote=False).bound()
    port = first[0].getsockname()[1]
    with pytest.raises(GradwatchError, match="Try another --port"):
        Address.checked("localhost", port, allow_remote=False).bound()
    second = Address.checked("localhost", None, allow_remote=False).bound()
    assert {line.getsockname()[1] for line in first}.isdisjoint(
        line.getsockname()[1] for line in second
    )
    for listener in first + second:
        listener.close()


def test_nobody_else_can_answer_where_a_browser_looks_first(tmp_path: Path) -> None:
    """A browser takes a name under .localhost to ::1 before 127.0.0.1."""
    with socket.socket(socket.AF_INET6) as other:
        try:
            other.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            GradwatchError, match=r"and ::1, port \d+: Address already in use\. Try"
        ):
            Address.checked("localhost", port, allow_remote=False).bound()
    with (
        listening(tmp_path) as (host, _, _),
        socket.socket(socket.AF_INET6) as late,
        pytest.raises(OSError, match="in use"),
    ):
        late.bind(("::1", int(host.rpartition(":")[2])))


def test_without_ipv6_one_address_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def old_machine(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, kind)

    monkeypatch.setattr(socket, "socket", old_machine)
    (listener,) = Address.checked("localhost", 0, allow_remote=False).bound()
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()


def peak_of(process: subprocess.Popen[str]) -> float:
    """MiB a process had in memory at most."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def listen(client: httpx.Client, path: str, ended: threading.Event) -> None:
    """A page that stays open, until the server ends."""
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream(
            "GET",
            client.base_url.join(path),
            headers=client.headers,
            cookies=client.cookies,
            timeout=WAIT,
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
        host = client.headers["host"]
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
