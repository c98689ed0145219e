"""The live page in a real browser: growing runs, runs that go, a server that comes back."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.server.visiting import listening
from tests.views.samples import HOSTILE, network
from tests.views.stored import Stored, stored

from gradwatch.errors import GradwatchError

pytestmark = pytest.mark.browser


def enter(tab: Any, host: str, keys: Any, tokens: list[str]) -> Any:
    keys.announce()
    tab.page.goto(f"http://{host}/?token={tokens[-1]}")
    tab.page.wait_for_selector("table.runs")
    return tab.page


def test_the_list_leads_to_a_run_and_the_token_leaves_the_address(tab: Any, tmp_path: Path) -> None:
    stored(network(4, 30), tmp_path / "one", "first run")
    stored(network(names=HOSTILE, steps=10), tmp_path / "two", HOSTILE[0])
    with listening(tmp_path) as (host, keys, tokens):
        page = enter(tab, host, keys, tokens)
        assert page.url == f"http://{host}/"
        row = page.locator("tr", has_text="first run")
        tab.until(lambda: row.locator("td.num").inner_text() == "30")
        row.locator("a").click()
        page.wait_for_selector("#map .cells canvas")
        assert "30 steps" in page.inner_text("#health")
        page.wait_for_selector(".live.complete")
        page.go_back()
        page.wait_for_selector("table.runs")
        tab.quiet()


def test_a_growing_run_grows_on_the_page_without_a_reload(tab: Any, tmp_path: Path) -> None:
    writing = Stored(network(4, 90), tmp_path / "one", "one")
    writing.upto(20)
    with listening(tmp_path) as (host, keys, tokens):
        page = enter(tab, host, keys, tokens)
        page.click("table.runs a")
        page.wait_for_selector("#health-line")
        tab.until(lambda: "20 steps" in page.inner_text("#health-line"))
        page.wait_for_selector("#analyses .ranked")
        early = page.inner_text("#analyses")
        page.evaluate("window.same = true")
        page.evaluate("location.hash += '&layer=net.1'")
        writing.upto(60)
        tab.until(lambda: "60 steps" in page.inner_text("#health-line"))
        tab.until(lambda: page.inner_text("#map [data-step=last]") == "59")
        writing.finish()
        page.wait_for_selector(".live.complete")
        tab.until(lambda: "90 steps" in page.inner_text("#health-line"))
        assert page.inner_text("#analyses") != early
        assert page.evaluate("window.same") is True
        assert page.inner_text("#layer h2").startswith("Layer net.1")
        shutil.rmtree(tmp_path / "one")
        page.wait_for_selector(".problem")
        tab.until(lambda: "no longer there" in page.inner_text(".problem"))
        assert page.is_visible("#map")
        tab.quiet()


def test_zooming_fetches_finer_steps(tab: Any, tmp_path: Path) -> None:
    stored(network(3, 1200), tmp_path / "one", "one")
    with listening(tmp_path) as (host, keys, tokens):
        page = enter(tab, host, keys, tokens)
        page.click("table.runs a")
        canvas = page.locator("#map .cells canvas")
        canvas.scroll_into_view_if_needed()
        canvas.hover(position={"x": 1, "y": 5})
        assert "steps 0–4" in page.inner_text("#map .tip")
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 1, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 12, box["y"] + 5, steps=4)
        page.mouse.up()
        tab.until(lambda: int(page.inner_text("#map [data-step=last]")) < 150)

        def finer() -> bool:
            page.locator("#map .steps").hover()
            canvas.hover(position={"x": 3, "y": 5})
            return "net.0, step 0:" in page.inner_text("#map .status")

        tab.until(finer)
        tab.quiet()


def test_a_restarted_server_has_a_new_link(tab: Any, tmp_path: Path) -> None:
    stored(network(3, 10), tmp_path / "one", "one")
    with listening(tmp_path) as (host, keys, tokens):
        page = enter(tab, host, keys, tokens)
        page.wait_for_selector(".live.live")
    page.wait_for_selector(".live.reconnecting")
    assert page.is_visible("table.runs")
    stored(network(3, 20), tmp_path / "two", "two")
    try:
        again = listening(tmp_path, int(host.rpartition(":")[2]))
        host, keys, tokens = again.__enter__()
    except GradwatchError:
        pytest.skip("somebody else has taken the port meanwhile")
    try:
        tab.until(lambda: "open the link" in page.inner_text(".live"))
        other = page.context.new_page()
        keys.announce()
        other.goto(f"http://{host}/?token={tokens[-1]}")
        other.wait_for_selector(".live.live")
        tab.until(lambda: other.locator("table.runs tbody tr").count() == 2)
        assert not tab.seen.outside
    finally:
        page.context.close()
        again.__exit__(None, None, None)


@contextlib.contextmanager
def another_port() -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Somebody else's server on this machine, and the cookie and referrer of each visit to it."""
    told: list[tuple[str, str]] = []

    class Curious(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                told.append((self.headers.get("cookie", ""), self.headers.get("referer", "")))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Curious) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, told
        server.shutdown()


def test_no_other_port_is_sent_the_cookie_or_where_one_came_from(tab: Any, tmp_path: Path) -> None:
    stored(network(3, 5), tmp_path / "one", "one")
    with listening(tmp_path) as (host, keys, tokens), another_port() as (port, told):
        page = enter(tab, host, keys, tokens)
        page.evaluate(f"location.href = 'http://127.0.0.1:{port}/'")
        page.wait_for_url(f"http://127.0.0.1:{port}/")
        name = host.partition(":")[0]
        for other in ("127.0.0.1", "localhost", f"a.{name}", name):
            page.goto(f"http://{other}:{port}/")
        assert told[:4] == [("", "")] * 4
        # A cookie goes to all ports of its name, which therefore must be ours alone.
        assert told[4][0].startswith("gradwatch_")
