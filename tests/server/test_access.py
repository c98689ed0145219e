"""Nobody gets in: hosts, origins, methods, tokens, sizes and paths, over the whole route table."""

import itertools
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.routing import Route
from tests.server.visiting import HOST, Visit, session_of
from tests.views.samples import network
from tests.views.stored import stored

from gradwatch.server.access import METHODS, MOST_SESSIONS, SECURITY, SESSION_SECONDS
from gradwatch.server.app import Pages
from gradwatch.server.runs import Library

METHODS_TRIED = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"]
NAME = HOST.partition(":")[0]
FOREIGN_HOSTS = [
    "evil.test",
    "localhost:8321",
    "127.0.0.1:8321",
    "[::1]:8321",
    "127.1:8321",
    "fedcba9876543210.localhost:8321",
    f"a.{HOST}",
    f"{NAME}.evil.test:8321",
    f"{NAME}:80@evil.test",
    NAME,
    f"{NAME}:8322",
    f"{NAME}.:8321",
    HOST.upper(),
    "",
]
FOREIGN_ORIGINS = [
    "null",
    "http://evil.test",
    "http://127.0.0.1:8321",
    "http://localhost:8321",
    "http://fedcba9876543210.localhost:8321",
    f"http://{NAME}:8322",
    f"http://{NAME}",
    f"https://{HOST}",
    f"http://{HOST}.evil.test",
    f"http://{HOST}/",
    "",
]


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    root = tmp_path_factory.mktemp("served")
    (root / "secret.txt").write_text("canary-outside")
    runs = root / "runs"
    runs.mkdir()
    stored(network(3, 12), runs / "one", "one")
    return Visit(runs)


def addresses(visit: Visit) -> list[str]:
    """Every route of the table, with a real id, and two that do not exist."""
    key = visit.id_of("one")
    table = [route for route in Pages(Library([])).routes() if isinstance(route, Route)]
    return [route.path.replace("{key}", key) for route in table] + ["/nothing", "/api/"]


def test_foreign_hosts_are_refused_on_every_route_and_method(visit: Visit) -> None:
    tried = 0
    for path, method, host in itertools.product(addresses(visit), METHODS_TRIED[:6], FOREIGN_HOSTS):
        answer = visit.ask(method, path, headers={"host": host})
        assert (answer.status_code, answer.content) == (421, b""), (path, method, host)
        tried += 1
    assert tried >= 500


def test_foreign_origins_and_sites_are_refused_on_every_route(visit: Visit) -> None:
    for path in addresses(visit):
        for origin in FOREIGN_ORIGINS:
            assert visit.get(path, headers={"origin": origin}).status_code == 403, origin
        for site in ("cross-site", "same-site", "nonsense"):
            assert visit.get(path, headers={"sec-fetch-site": site}).status_code == 403


def test_two_host_headers_are_refused(visit: Visit) -> None:
    twice = [("host", HOST), ("host", "evil.test")]
    assert visit.get("/", headers=twice).status_code == 421


def test_only_reading_methods_are_known(visit: Visit) -> None:
    for path in addresses(visit):
        for method in METHODS_TRIED:
            if method in METHODS:
                continue
            answer = visit.ask(method, path, headers={"x-http-method-override": "GET"})
            assert answer.status_code == 405
            assert answer.content == b""


def test_without_the_cookie_nothing_is_told(visit: Visit) -> None:
    wrong = [{}, {"cookie": "gradwatch=x"}, {"cookie": f"{visit.app.cookie}=wrong"}]
    for path in addresses(visit):
        for headers in wrong:
            answer = visit.get(path, cookie=False, headers=headers)
            assert answer.status_code == 401
            assert visit.session not in answer.text
            assert NAME not in answer.text


def test_only_the_own_host_origin_and_site_together_are_answered(visit: Visit) -> None:
    """With the true cookie, every combination."""
    origins = [None, f"http://{HOST}", *FOREIGN_ORIGINS]
    sites = [None, "none", "same-origin", "same-site", "cross-site"]
    answered = []
    for host, origin, site in itertools.product([HOST, *FOREIGN_HOSTS[:6]], origins, sites):
        asked = {"host": host, "origin": origin, "sec-fetch-site": site}
        headers = {name: value for name, value in asked.items() if value is not None}
        if visit.ask("HEAD", "/", headers=headers).status_code == 200:
            answered.append((host, origin, site))
    assert answered == list(itertools.product([HOST], origins[:2], sites[:3]))


def test_a_link_works_once_and_leaves_the_address_bar(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    visit.keys.announce()
    token = visit.tokens[-1]
    answer = visit.get(f"/?token={token}", cookie=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=43200" in cookie
    assert "Domain" not in cookie
    assert token not in cookie
    assert token not in answer.text
    refused = visit.get(f"/?token={token}", cookie=False)
    assert refused.status_code == 401
    assert "press Enter" in refused.text
    assert "restart" in refused.text
    assert visit.tokens[-1] == token  # no visit prints another
    visit.keys.announce()
    assert visit.tokens[-1] != token


def test_a_link_that_nobody_opened_stays_good(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    for _ in range(3):
        visit.keys.announce()
    assert len(set(visit.tokens[1:])) == 1
    token = visit.tokens[-1]
    head = visit.ask("HEAD", f"/?token={token}", cookie=False)
    assert head.status_code == 401
    assert "set-cookie" not in head.headers
    assert visit.get(f"/api/runs?token={token}", cookie=False).status_code == 401
    assert visit.get(f"/?token={token}&token={token}", cookie=False).status_code == 401
    assert visit.get(f"/?token={token}", cookie=False).status_code == 303


def test_each_link_opens_a_session_of_its_own_that_ends(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    first = visit.session
    visit.now = SESSION_SECONDS - 1
    assert visit.get("/").status_code == 200
    visit.session = second = session_of(visit.keys, visit.tokens)
    assert second != first
    visit.now = SESSION_SECONDS
    assert visit.get("/").status_code == 200
    visit.session = first
    assert visit.get("/").status_code == 401


def test_of_too_many_sessions_the_oldest_ends(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    later = [session_of(visit.keys, visit.tokens) for _ in range(MOST_SESSIONS)]
    assert not visit.keys.allows(visit.session)
    assert all(visit.keys.allows(session) for session in later)


def test_a_stream_ends_with_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.server.app.SECONDS", 0.01)
    visit = Visit(tmp_path)

    def expires(*_: object) -> list[str]:
        visit.now += SESSION_SECONDS / 3
        return []

    monkeypatch.setattr("gradwatch.server.app.of_list", lambda _: expires)
    answer = visit.get("/api/events")  # returns only when the stream has ended
    assert (answer.status_code, answer.text) == (200, "retry: 2000\n\n")
    assert visit.now == SESSION_SECONDS


def test_wrong_tokens_open_nothing(visit: Visit) -> None:
    for token in ("", "x", "x" * 43, visit.session, "é"):
        answer = visit.get(f"/?token={quote(token)}", cookie=False)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_every_answer_carries_the_security_headers(visit: Visit) -> None:
    answers = [visit.get(path) for path in addresses(visit) if not path.endswith("events")]
    answers += [
        visit.get("/", cookie=False),
        visit.get("/", headers={"host": "evil.test"}),
        visit.ask("POST", "/"),
        visit.ask("HEAD", "/api/events"),
    ]
    for answer in answers:
        for name, value in SECURITY.items():
            assert answer.headers.get_list(name) == [value]
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_requests_have_limits(visit: Visit) -> None:
    assert visit.get("/?" + "a" * 3000).status_code == 414
    assert visit.ask("GET", "/", content=b"body").status_code == 413
    for bad in ("1e9", "9" * 40, "--1", "1 ", "٣", "0x10", "nan"):
        key = visit.id_of("one")
        assert visit.get(f"/api/runs/{key}/view", params={"first": bad}).status_code == 400


def traversals() -> list[str]:
    """2,000 and more ways to write a path that leaves the folder."""
    dots = ["..", "%2e%2e", "%252e%252e", "..%00", "%c0%ae%c0%ae", "..;", "....", ".%2e", "%u002e."]
    slashes = ["/", "%2f", "%252f", "\\", "%5c", "//", "%c0%af", "/./"]
    ends = ["secret.txt", "run.json", "etc/passwd", "proc/self/environ", "one/run.json"]
    starts = ["/api/runs/", "/", "/api/runs/one/", "/page.js/", "/static/", "/api/"]
    return [
        f"{start}{(dot + slash) * depth}{end}"
        for start, dot, slash, depth, end in itertools.product(starts, dots, slashes, (1, 4), ends)
    ]


def test_no_way_of_writing_a_path_leaves_the_table(visit: Visit) -> None:
    tried = traversals()
    assert len(set(tried)) >= 2000
    for path, (status, body) in zip(tried, visit.sent(tried), strict=True):
        assert status == 404, path
        assert b"canary" not in body
        assert b"root:" not in body


def test_a_failing_handler_says_a_number_and_nothing_else(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> bytes:
        raise RuntimeError("canary /home/somebody/secret")

    monkeypatch.setattr("gradwatch.server.app.live_shell", fails)
    answer = visit.get("/")
    assert answer.status_code == 500
    assert "canary" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    monkeypatch.undo()
    assert visit.get("/").status_code == 200
