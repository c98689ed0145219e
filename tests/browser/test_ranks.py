"""The ranks of a merged run on the page: the numbers of each, the far one, the cut one."""

from pathlib import Path
from typing import Any

import pytest
from tests.server.visiting import listening
from tests.views.ranked import CUT_AT, LOSS, SECONDS, four_ranks, left_behind
from tests.views.samples import Told, network

from gradwatch.text import number
from gradwatch.views.model import build
from gradwatch.views.page import report

pytestmark = pytest.mark.browser


def cells(page: Any, table: str) -> list[list[str]]:
    rows = page.locator(f"#ranks table.{table} tbody tr").all()
    return [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in rows]


def test_the_report_tells_the_ranks_apart(tab: Any, tmp_path: Path) -> None:
    with four_ranks(tmp_path / "run") as run:
        page = tab.open(report(build(run, Told((left_behind(),), healthy=False))))
    each = cells(page, "each")
    assert [row[0] for row in each] == ["0", "1", "2", "3"]
    cut_loss = LOSS[2] + (9 - (CUT_AT - 1)) / 4
    assert [row[2] for row in each] == [number(v) for v in (LOSS[0], LOSS[1], cut_loss, LOSS[3])]
    assert [row[4] for row in each] == [number(1e3 * seconds) for seconds in SECONDS]
    assert each[2][5] == "ends at step 5, not closed"
    assert each[3][5] == "slow"
    spread = cells(page, "spread")
    assert spread[0] == ["loss, last", "1 rank 0", "1.69", "4 rank 3", "rank 3"]
    assert page.inner_text("#ranks .departure") == f"departs {left_behind().message}"
    told = page.locator("#ranks .chart").get_attribute("aria-label")
    assert "rank 3: 6.25 at first, 4 at last" in told
    assert "ranks" in page.locator("nav a").all_inner_texts()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.quiet()


def test_one_process_shows_no_ranks(tab: Any) -> None:
    page = tab.open(report(build(network(3, 10), Told())))
    assert page.locator("#ranks").count() == 0
    assert "ranks" not in page.locator("nav a").all_inner_texts()
    tab.quiet()


def test_the_live_page_shows_them_too(tab: Any, tmp_path: Path) -> None:
    with four_ranks(tmp_path / "run"), listening(tmp_path) as (host, keys, tokens):
        keys.announce()
        tab.page.goto(f"http://{host}/?token={tokens[-1]}")
        tab.page.click("table.runs a")
        tab.page.wait_for_selector("#ranks table.each")
        assert cells(tab.page, "each")[3][2] == number(LOSS[3])
        assert cells(tab.page, "spread")[0][3] == "4 rank 3"
        tab.quiet()
