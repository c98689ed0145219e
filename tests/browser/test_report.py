"""The report in a real browser: numbers are read back from the page and compared with the run."""

from typing import Any

import numpy as np
import pytest
from tests.browser.runs import RUNS, many_layers, value_in
from tests.views.samples import HOSTILE, Told, network, sick_diagnosis

from gradwatch.stats import Stat
from gradwatch.text import number
from gradwatch.views.model import build
from gradwatch.views.page import player, report

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("kind", RUNS)
def test_every_run_is_shown_in_light_and_dark_wide_and_narrow(tab: Any, kind: str) -> None:
    run, told = RUNS[kind]()
    model = build(run, told or (sick_diagnosis(run) if len(run.steps) else None))
    page = tab.open(report(model))
    assert page.inner_text("#health-line") == model.health["line"]
    assert page.inner_text("#health .badge").endswith(model.health["state"])
    for key in (",", ".", " ", " ", "9", "?", "Escape", "d"):
        page.keyboard.press(key)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("section#recording h2").count() == 1
    tab.quiet()


def test_the_map_tells_the_gradient_under_the_pointer(tab: Any) -> None:
    run = network(6, 40, fading=True)
    page = tab.open(report(build(run, Told())))
    canvas = page.locator("#map .cells canvas")
    box = canvas.bounding_box()
    naive = run.series["grad_norm"] / np.sqrt([s.count for s in run.parameters])
    for layer, step in ((0, 3), (5, 20), (2, 39)):
        canvas.hover(
            position={
                "x": (step + 0.5) / 40 * box["width"],
                "y": (layer + 0.5) / 6 * box["height"],
            }
        )
        text = page.inner_text("#map .tip")
        assert text.startswith(f"net.{layer}, step {step}: ")
        assert value_in(text) == pytest.approx(naive[step, 2 * layer], rel=0.06)
        assert page.inner_text("#map .status") == text
    assert page.inner_text("#map [data-step=first]") == "step 0"
    assert page.inner_text("#map [data-step=last]") == "39"
    lowest = page.inner_text("#map [data-scale=low]")
    assert lowest == number(float(naive.min()))
    assert page.inner_text("#map [data-scale=high]") == number(float(naive.max()))
    tab.quiet()


def test_the_map_can_be_read_with_the_keyboard_and_says_nonfinite(tab: Any) -> None:
    page = tab.open(report(build(network(4, 10, broken_from=1), Told())))
    page.locator("#map .cells canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.inner_text("#map .status") == "net.2, step 1: NaN or Inf"
    page.keyboard.press("Enter")
    page.wait_for_selector("#layer")
    assert "layer=net.2" in page.url
    assert "step=1" in page.url
    tab.quiet()


def test_dragging_zooms_and_a_double_click_shows_all(tab: Any) -> None:
    page = tab.open(report(build(network(4, 100), Told())))
    page.locator("#map .cells canvas").scroll_into_view_if_needed()
    box = page.locator("#map .cells canvas").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2 + 2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5 + 2, y, steps=4)
    page.mouse.up()
    assert page.inner_text("#map [data-step=first]") == "step 20"
    assert page.inner_text("#map [data-step=last]") == "50"
    page.locator("#map .cells canvas").dblclick()
    assert page.inner_text("#map [data-step=last]") == "99"
    tab.quiet()


def test_worst_first_and_another_statistic(tab: Any) -> None:
    run = network(5, 40, fading=True)
    page = tab.open(report(build(run, sick_diagnosis(run))))
    page.select_option("#map select >> nth=1", "badness")
    assert page.inner_text("#map .name >> nth=0") == "net.0"
    page.select_option("#map select >> nth=0", "act_std")
    page.locator("#map .cells canvas").hover(position={"x": 3, "y": 3})
    shown = page.inner_text("#map .tip")
    assert shown.startswith("net.0, step 0: ")
    expected = run.series["act_std"][0, 0]
    assert value_in(shown) == pytest.approx(expected, rel=0.06)
    tab.quiet()


def test_a_finding_shows_its_evidence_and_a_chart_with_the_moment(tab: Any) -> None:
    run = network(6, 50, fading=True)
    page = tab.open(report(build(run, sick_diagnosis(run))))
    page.locator(".finding summary").first.click()
    cells = page.locator(".finding .evidence >> nth=0").locator("tbody td").all_inner_texts()
    assert cells == ["grad_norm", "net.0.weight", "7", "1.0e-05", "1.0e-04"]
    told = page.locator(".finding .chart").first.get_attribute("aria-label")
    series = run.column(Stat.GRAD_NORM, "net.0.weight")
    assert f"{number(series[0])} at first, {number(series[-1])} at last" in told
    assert "step 7 is marked" in told
    assert "limit 1.0e-04" in told
    assert page.locator("#health .facts dd").all_inner_texts()[1:3] == ["step 7", "net.0"]
    tab.quiet()


def test_the_loss_under_the_pointer_is_the_logged_one(tab: Any) -> None:
    run = network(3, 50)
    page = tab.open(report(build(run, Told())))
    over = page.locator("#loss .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 10 / 49, box["y"] + 20)
    values = page.locator("#loss .u-legend >> nth=0").locator(".u-value")
    tab.until(lambda: values.nth(0).inner_text() == "10")
    assert values.all_inner_texts() == ["10", number(float(run.scalars["loss"][10]))]
    tab.quiet()


def test_a_link_opens_the_layer_and_search_finds_one(tab: Any) -> None:
    run = network(6, 30)
    page = tab.open(report(build(run, Told())), "#layer=net.3&step=12")
    assert page.inner_text("#layer h2").startswith("Layer net.3 Linear")
    rows = page.locator("#layer > table tbody tr").all_inner_texts()
    assert [row.split("\t")[:4] for row in rows] == [
        ["net.3.weight", "8 × 8", "float32", "64"],
        ["net.3.bias", "8", "float32", "8"],
    ]
    last = run.series["grad_norm"][-1, 6] / 8
    assert float(rows[0].split("\t")[4]) == pytest.approx(last, rel=0.06)
    page.keyboard.press("/")
    page.keyboard.type("net.5")
    assert page.inner_text("#search-count") == "1 layer"
    page.keyboard.press("Enter")
    tab.until(lambda: "net.5" in page.inner_text("#layer h2"))
    tab.quiet()


def test_the_flow_tells_each_layer_at_each_step(tab: Any) -> None:
    run = network(4, 12, fading=True)
    page = tab.open(report(build(run, sick_diagnosis(run))), "#step=9")
    assert page.inner_text("#flow-step") == "step 9"
    names = page.locator("#flow .node").evaluate_all("ns => ns.map(n => n.ariaLabel)")
    assert len(names) == 4
    assert names[0].startswith("net.0 (Linear): ")
    assert names[0].endswith("vanishing")
    shown = float(names[3].rpartition(": ")[2])
    assert shown == pytest.approx(run.series["grad_norm"][9, 6] / 8, rel=0.06)
    page.keyboard.press(",")
    assert page.inner_text("#flow-step") == "step 8"
    page.locator("#flow input[type=range]").fill("2")
    assert page.inner_text("#flow-step") == "step 2"
    assert "step=2" in page.url
    assert page.locator("#flow .node").first.get_attribute("aria-label").count("vanishing") == 0
    tab.quiet()


def test_ridges_updates_and_notes_are_told_in_words(tab: Any) -> None:
    run = network(3, 40)
    page = tab.open(report(build(run, sick_diagnosis(run))))
    ridge = page.locator(".ridge").first.get_attribute("aria-label")
    assert "step 16: 64 weights, 1 exactly zero" in ridge
    update = page.locator("#updates .chart").get_attribute("aria-label")
    medians = np.median(run.series["update_ratio"][::4][:, ::2], axis=1)
    assert f"median: {number(medians[0])} at first, {number(medians[-1])} at last" in update
    assert page.inner_text("#cost") == "0.4 % of the run's time was spent recording"
    assert page.locator(".skipped tbody td").all_inner_texts() == [
        "overfitting",
        "not recorded: validation loss",
    ]
    tab.quiet()


def test_hostile_names_make_the_same_page_as_plain_ones(tab: Any) -> None:
    counts = []
    for names in (HOSTILE, [f"layer{i}" for i in range(len(HOSTILE))]):
        run = network(names=names, steps=20)
        page = tab.open(report(build(run, sick_diagnosis(run))))
        counts.append(page.evaluate("document.querySelectorAll('*').length"))
    assert counts[0] == counts[1]
    assert page.evaluate("({}).polluted") is None
    tab.quiet()


def test_many_layers_are_grouped_and_a_block_opens(tab: Any) -> None:
    text = report(build(many_layers(), Told()))
    assert 'data-packed="deflate-raw"' in text
    page = tab.open(text)
    first = page.locator("#map .name").first
    assert first.inner_text() == "▸ blocks.0 (10)"
    first.click()
    assert page.locator("#map .name >> nth=1").inner_text() == "blocks.0.part0"
    page.keyboard.press("/")
    page.keyboard.type("blocks.499.part7")
    assert page.locator("#map .name").all_inner_texts() == ["blocks.499.part7"]
    tab.quiet()


def test_printed_the_tools_are_left_away(tab: Any) -> None:
    page = tab.open(report(build(network(3, 20), Told())))
    page.emulate_media(media="print")
    assert not page.locator(".search").is_visible()
    assert page.locator("#health-line").is_visible()
    tab.quiet()


def test_the_player_plays_pauses_and_scrubs(tab: Any) -> None:
    page = tab.open(player(build(network(5, 60, fading=True), Told()), "mono"))
    page.keyboard.press("Home")
    assert page.inner_text("#flow-step") == "step 0"
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#flow-step") == "step 1"
    page.keyboard.press(" ")
    tab.until(lambda: int(page.inner_text("#flow-step").split()[1]) > 5)
    page.keyboard.press(" ")
    assert page.inner_text(".playback button").endswith("play")
    page.keyboard.press("End")
    assert page.inner_text("#flow-step") == "step 59"
    assert page.input_value("#flow > label select") == "mono"
    tab.quiet()


def test_the_keyboard_zooms_too(tab: Any) -> None:
    page = tab.open(report(build(network(4, 100), Told())))
    page.locator("#map .cells canvas").focus()
    page.keyboard.press("+")
    assert page.inner_text("#map [data-step=last]") == "49"
    page.keyboard.press("Escape")
    assert page.inner_text("#map [data-step=last]") == "99"
    tab.quiet()


@pytest.mark.timing
def test_a_report_of_500_tensors_draws_itself_in_a_second(tab: Any) -> None:
    names = [f"model.layers.{i}.part{j}" for i in range(50) for j in range(5)]
    tab.open(report(build(network(names=names, steps=1000), Told())))
    timing = tab.page.evaluate("performance.getEntriesByType('paint')[0].startTime")
    assert timing < 1000
