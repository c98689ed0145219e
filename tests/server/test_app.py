"""What the server tells: the same model as the report, growth, and runs that go."""

import contextlib
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.visiting import Visit, cookie_of, listening, session_of, visitor
from tests.views.samples import HOSTILE, network
from tests.views.stored import Stored, stored

from gradwatch.diagnosis import diagnose
from gradwatch.store import open_run
from gradwatch.views.model import build, to_json
from gradwatch.views.page import report


def test_report_and_live_page_hold_the_same_model_byte_for_byte(tmp_path: Path) -> None:
    path = stored(network(5, 40, fading=True), tmp_path / "one", "one")
    visit = Visit(tmp_path)
    live = visit.get(f"/api/runs/{visit.id_of('one')}/view").content
    run = open_run(path)
    page = report(build(run, diagnose(run)))
    inside = re.search(r'<script type="application/json" id="model">(.*?)</script>', page)
    assert inside is not None
    assert inside[1].encode() == live


def test_a_window_is_the_view_model_of_these_steps(tmp_path: Path) -> None:
    path = stored(network(3, 40), tmp_path / "one", "one")
    visit = Visit(tmp_path)
    address = f"/api/runs/{visit.id_of('one')}/view"
    live = visit.get(address, params={"first": 10, "last": 19}).content
    run = open_run(path)
    assert live.decode() == to_json(build(run, diagnose(run), first=10, last=19))
    assert json.loads(live)["heat"]["first"] == list(range(10, 20))


def test_the_list_tells_health_and_loss(tmp_path: Path) -> None:
    stored(network(3, 40), tmp_path / "one", "one")
    stored(network(names=HOSTILE, steps=5), tmp_path / "two", HOSTILE[11])
    runs = {run["name"]: run for run in Visit(tmp_path).listing()}
    loss = network(3, 40).scalars["loss"]
    assert runs["one"]["steps"] == 40
    assert runs["one"]["complete"] is True
    assert runs["one"]["last_loss"] == pytest.approx(float(loss[-1]), rel=1e-5)
    assert len(runs) == 2


def test_ids_are_no_paths_and_unknown_ones_are_not_there(tmp_path: Path) -> None:
    stored(network(2, 3), tmp_path / "one", "one")
    visit = Visit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{16}", visit.id_of("one"))
    for key in ("one", "0" * 16, "*", "%2e%2e"):
        assert visit.get(f"/api/runs/{key}/view").status_code == 404


def test_a_deleted_run_is_said_to_be_gone(tmp_path: Path) -> None:
    stored(network(2, 3), tmp_path / "one", "one")
    visit = Visit(tmp_path)
    key = visit.id_of("one")
    shutil.rmtree(tmp_path / "one")
    answer = visit.get(f"/api/runs/{key}/view")
    assert (answer.status_code, answer.json()) == (404, {"error": "This run is no longer there."})
    end = time.monotonic() + 20.0  # a folder that was slow to list is listed again after a while
    while visit.get("/api/runs").json()["runs"] and time.monotonic() < end:
        time.sleep(0.01)
    assert visit.get("/api/runs").json()["runs"] == []


def test_an_unreadable_run_does_not_name_its_path(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    visit = Visit(tmp_path)
    runs = visit.listing()
    assert [run["line"] for run in runs] == ["cannot be read: the terminal says why"]
    answer = visit.get(f"/api/runs/{runs[0]['id']}/view")
    assert answer.status_code == 422
    assert str(tmp_path) not in answer.text


def next_event(lines: Iterator[str], wanted: str) -> str:
    """Read a stream until an event of this name; its id."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("id: ") and name == wanted:
            return line.removeprefix("id: ")
    raise AssertionError("the stream ended")


def test_growth_comes_as_events_and_the_stream_resumes(tmp_path: Path) -> None:
    source = network(3, 60)
    writing = Stored(source, tmp_path / "one", "one")
    writing.upto(20)
    with (
        listening(tmp_path) as (host, keys, tokens),
        visitor(host, session_of(keys, tokens)) as client,
    ):
        (run,) = client.get("/api/runs").json()["runs"]
        address = f"/api/runs/{run['id']}"
        with client.stream("GET", f"{address}/events") as stream:
            mark = next_event(stream.iter_lines(), "grown")
        assert client.get(f"{address}/view").json()["run"]["steps"] == 20
        with client.stream("GET", f"{address}/events", headers={"last-event-id": mark}) as stream:
            writing.upto(45)
            next_event(stream.iter_lines(), "grown")
        writing.finish()
        with client.stream("GET", f"{address}/events") as stream:
            lines = stream.iter_lines()
            next_event(lines, "grown")
            steps = 0
            while steps < 60:  # a rest between two builds may give the older one first
                steps = client.get(f"{address}/view").json()["run"]["steps"]
            next_event(lines, "complete")
        shutil.rmtree(tmp_path / "one")
        with client.stream("GET", f"{address}/events") as stream:
            next_event(stream.iter_lines(), "gone")


def connected(host: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), timeout=60)


def raw(host: str, request: bytes) -> bytes:
    parts = []
    with (
        connected(host) as line,
        contextlib.suppress(ConnectionError),  # cut off in the middle is an answer too
    ):
        line.sendall(request)
        line.shutdown(socket.SHUT_WR)
        while part := line.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_strange_requests_are_bounded_and_the_server_lives(tmp_path: Path) -> None:
    with listening(tmp_path) as (host, _, _):
        own = f"Host: {host}\r\n".encode()
        strange = [
            b"GET /\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x00\xff\x16\x03\x01",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + own + own + b"\r\n",
            b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + own + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            b"GET / HTTP/1.1\r\n" + own + b"Content-Length: -5\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + own + b"Range: bytes=" + b"0-1," * 3000 + b"0-1\r\n\r\n",
            b"GET /?" + b"a=1&" * 10_000 + b" HTTP/1.1\r\n" + own + b"\r\n",
            (b"GET / HTTP/1.1\r\n" + own + b"\r\n") * 1000,  # all at once on one line
        ]
        for request in strange:
            answer = raw(host, request)
            assert not answer.startswith(b"HTTP/1.1 2"), (request[:60], answer[:60])
            assert answer.count(b"HTTP/1.1 ") <= 1000
            assert len(answer) < 2_000_000
        assert raw(host, b"GET / HTTP/1.1\r\n" + own + b"Connection: close\r\n\r\n").startswith(
            b"HTTP/1.1 401"
        )


def test_visitors_who_leave_in_the_middle_leave_nothing_behind(tmp_path: Path) -> None:
    stored(network(3, 30), tmp_path / "one", "one")
    with listening(tmp_path) as (host, keys, tokens):
        session = session_of(keys, tokens)
        for path in ["/api/events", "/page.js", "/api/runs"] * 40:
            with connected(host) as line:
                cookie = cookie_of(host, session)
                head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n"
                line.sendall(head.encode() + b"\r\n")
                line.recv(20)
        with visitor(host, session) as client:
            status = 503
            end = time.monotonic() + 60
            while status == 503 and time.monotonic() < end:  # until the lost streams are noticed
                with client.stream("GET", "/api/events") as stream:
                    status = stream.status_code
            assert status == 200
