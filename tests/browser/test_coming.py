"""A large run on the live page while it opens: progress, a first look, maps on demand, changes."""

from pathlib import Path
from typing import Any

import pytest
from tests.browser.runs import value_in
from tests.server.visiting import listening
from tests.views.samples import network
from tests.views.stored import stored

from gradwatch.views.model import build, to_json

pytestmark = pytest.mark.browser
RUN = network(4, 40)
COMING = {"what": "opening", "done": 0.4, "maps": ["grad_rms", "update_ratio"]}
STREAM = 'event: progress\ndata: {"what": "opening", "done": 0.4}\n\n'


def first_look(page: Any) -> list[str]:
    """Let the server answer as it does while a large run opens; the maps it is asked for."""
    asked: list[str] = []
    model = build(RUN, None, stats=["grad_rms"], with_paths=False)

    def answer(route: Any) -> None:
        address = route.request.url
        asked.append(address.partition("?")[2])
        if "maps=" in address:
            part = build(RUN, None, stats=["update_ratio"])
            text = to_json({"window": part.window, "heat": part.heat})
        else:
            text = to_json({**model.to_dict(), "coming": COMING})
        route.fulfill(body=text, content_type="application/json", headers={"etag": '"one"'})

    page.route("**/api/runs/*/view?*", answer)
    page.route(
        "**/api/runs/*/events",
        lambda route: route.fulfill(body=STREAM, content_type="text/event-stream"),
    )
    return asked


def test_a_run_that_opens_says_how_far_and_shows_what_there_is(tab: Any, tmp_path: Path) -> None:
    stored(RUN, tmp_path / "one", "one")
    with listening(tmp_path) as (host, keys, tokens):
        keys.announce()
        tab.page.goto(f"http://{host}/?token={tokens[-1]}")
        asked = first_look(tab.page)
        tab.page.click("table.runs a")
        tab.page.wait_for_selector("#map .cells canvas")
        tab.until(lambda: "opening, 40 %" in tab.page.inner_text(".working"))
        assert tab.page.locator(".working progress").get_attribute("value") == "40"
        assert "coarsest level" in tab.page.inner_text(".coming")
        tab.page.select_option("#map select >> nth=0", "update_ratio")
        canvas = tab.page.locator("#map .cells canvas")

        def told() -> str:
            tab.page.locator("#map h2").hover()
            canvas.hover(position={"x": 2, "y": 5})
            return str(tab.page.inner_text("#map .tip"))

        expected = RUN.series["update_ratio"][0, 0]
        tab.until(lambda: value_in(told()) == pytest.approx(expected, rel=0.06))
        assert "maps=update_ratio&sections=window,heat" in asked
        tab.page.unroute_all()
        tab.page.wait_for_selector(".coming", state="detached")  # the real server has it all
        assert tab.page.inner_text("#health-line").endswith("had nothing to look at")
        assert tab.page.locator(".working").count() == 0
        assert not tab.seen.outside


def test_only_what_changed_is_asked_for(tab: Any, tmp_path: Path) -> None:
    stored(RUN, tmp_path / "one", "one")
    with listening(tmp_path) as (host, keys, tokens):
        keys.announce()
        tab.page.goto(f"http://{host}/?token={tokens[-1]}")
        tags: list[str | None] = []
        whole = {**build(RUN, None).to_dict(), "timeline": ["first"]}

        def answer(route: Any) -> None:
            tags.append(route.request.headers.get("if-none-match"))
            if len(tags) == 1:
                text, headers = to_json(whole), {"etag": '"one"'}
            else:  # only the health is new; all else must stay
                health = {**whole["health"], "line": f"changed {len(tags)}"}
                text = to_json({"health": health})
                since = str(tags[-1]).strip('"')
                headers = {"etag": f'"{len(tags)}"', "x-gradwatch-since": since}
            route.fulfill(body=text, content_type="application/json", headers=headers)

        tab.page.route("**/api/runs/*/view?*", answer)
        tab.page.click("table.runs a")
        tab.until(lambda: "changed" in tab.page.inner_text("body"))
        assert tags[:2] == [None, '"one"']
        assert tab.page.inner_text("#map [data-step=last]") == "39"
        assert tab.page.locator("#map .name").count() == 4
        assert not tab.seen.outside
