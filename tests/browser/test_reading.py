"""Axes, legends, focus, paper and small screens in a real browser: what is read is what is true."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.runs import many_layers, weights_only
from tests.making import make_run
from tests.server.visiting import listening
from tests.views.samples import HOSTILE, Told, network, sick_diagnosis
from tests.views.stored import stored

from gradwatch.text import number
from gradwatch.views.colours import Scheme, luminance
from gradwatch.views.model import build
from gradwatch.views.page import report

pytestmark = pytest.mark.browser


def axis(page: Any, where: str, name: str) -> list[float]:
    """The numbers written at an axis of the first chart there."""
    text = page.locator(f"{where} .plot").first.get_attribute(f"data-{name}")
    return [float(part.replace("\u202f", "")) for part in text.split(" ")]


def legend(page: Any, where: str) -> list[str]:
    texts: list[str] = page.locator(f"{where} .chart").first.locator(".u-value").all_inner_texts()
    return texts


def test_axes_are_labelled_with_even_numbers_around_the_data(tab: Any) -> None:
    run = network(3, 50)
    page = tab.open(report(build(run, Told())))
    loss = run.scalars["loss"]
    values = axis(page, "#loss", "y")
    apart = np.diff(values)
    assert apart == pytest.approx(np.full(len(apart), apart[0]))
    assert values[0] <= loss.min() + apart[0]
    assert values[-1] >= loss.max() - apart[0]
    assert axis(page, "#loss", "x") == [0, 10, 20, 30, 40]
    rates = page.locator("#loss .plot >> nth=1")
    assert rates.get_attribute("data-y").split(" ")[2] == "1.000e-3"
    tab.quiet()


def test_no_label_is_cut_off(tab: Any) -> None:
    page = tab.open(report(build(network(3, 50), Told())))
    # The widest label is `1.000e-3`; the plot begins right of it.
    left = page.locator("#loss .chart >> nth=1").locator(".u-over").evaluate("e => e.offsetLeft")
    wide = page.evaluate(
        "(() => { const c = document.createElement('canvas').getContext('2d');"
        " c.font = '11px system-ui, sans-serif'; return c.measureText('1.000e-3').width })()"
    )
    assert left >= wide + 8
    tab.quiet()


def test_at_rest_the_legend_tells_the_newest_values_and_one_step_stands_alone(tab: Any) -> None:
    run = network(3, 50)
    page = tab.open(report(build(run, Told())))
    assert legend(page, "#loss") == ["49", number(float(run.scalars["loss"][-1]))]
    page.locator("#loss .u-over").first.hover(position={"x": 5, "y": 5})
    tab.until(lambda: legend(page, "#loss")[0] in ("0", "1"))
    page.locator("h1").hover()
    tab.until(lambda: legend(page, "#loss")[0] == "49")
    page = tab.open(report(build(network(3, 1), Told())))
    assert axis(page, "#loss", "x") == [0, 1]
    tab.quiet()


def test_the_page_writes_numbers_as_every_other_view_does(tab: Any) -> None:
    values = [1.125, 1.375, 0.5, 2.675, 1000.5, 1001.5, 9999.7, 999.5, 0.03125, -0.0078125]
    values += [123456.0, 1.25e5, 1.35e5, 3e-7, -2.5e-9, 1e-2, 9.995, 12.5, 1e100, 1e-300]
    values += np.random.default_rng(3).lognormal(0, 8, 15).round(9).tolist()
    named = {f"s{i:02}": [value] for i, value in enumerate(values)}
    page = tab.open(report(build(make_run({}, scalars=named), Told())))
    page.locator("#loss summary").click()
    shown = page.locator("#loss .others .u-value").all_inner_texts()[1::2]
    assert shown == [number(float(f"{value:.6g}")) for value in values]
    tab.quiet()


def test_dragging_zooms_a_chart_and_a_double_click_shows_all(tab: Any) -> None:
    page = tab.open(report(build(network(3, 200), Told())))
    over = page.locator("#loss .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=4)
    page.mouse.up()
    tab.until(lambda: axis(page, "#loss", "x")[-1] <= 100)
    assert axis(page, "#loss", "x")[0] >= 49
    over.dblclick()
    tab.until(lambda: axis(page, "#loss", "x")[0] == 0)
    tab.quiet()


def test_the_steps_under_the_map_stand_where_they_are(tab: Any) -> None:
    page = tab.open(report(build(network(4, 100), Told())))
    canvas = page.locator("#map .cells canvas").bounding_box()
    ticks = page.locator("#map .tick")
    assert ticks.all_inner_texts() == ["20", "40", "60", "80"]
    for at, step in enumerate((20, 40, 60, 80)):
        box = ticks.nth(at).bounding_box()
        middle = box["x"] + box["width"] / 2
        assert middle == pytest.approx(canvas["x"] + step / 100 * canvas["width"], abs=2)
    tab.quiet()


def test_only_parts_that_are_there_are_listed_and_their_keys_lead_there(tab: Any) -> None:
    page = tab.open(report(build(weights_only(), Told(healthy=None))))
    assert page.locator("nav a").all_inner_texts() == ["health", "map", "analyses", "recording"]
    page = tab.open(report(build(network(4, 30), Told())))
    listed = page.locator("nav a").all_inner_texts()
    for part in listed:
        assert page.locator(f"section#{part}").count() == 1
    page.keyboard.press("4")
    assert f"view={listed[3]}" in page.url
    tab.quiet()


def test_names_end_inside_their_boxes(tab: Any) -> None:
    names = [*HOSTILE, "W" * 300, "model.decoder.layers.11.self_attn.q_proj"]
    page = tab.open(report(build(network(names=names, steps=5), Told())))
    widths = page.locator("#flow .node text").evaluate_all(
        "ts => ts.map(t => t.getBBox().x + t.getBBox().width)"
    )
    assert len(widths) >= 2 * len(names)
    assert max(widths) <= 108
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    tab.quiet()


def test_one_tab_stop_leads_to_the_layers_and_arrows_move_among_them(tab: Any) -> None:
    page = tab.open(report(build(many_layers(), Told())))
    stops = page.locator("#map .names [tabindex='0']")
    assert stops.count() == 1
    stops.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.innerText") == "▸ blocks.1 (10)"
    assert page.locator("#map .names [tabindex='0']").count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    nodes = page.locator("#flow .node[tabindex='0']")
    assert nodes.count() == 1
    nodes.focus()
    page.keyboard.press("ArrowRight")
    told = page.evaluate("document.activeElement.ariaLabel")
    assert told.startswith(page.locator("#flow .node title").nth(1).text_content()[:12])
    assert page.locator("#flow .edge.pointed").count() == 2
    tab.quiet()


def test_tab_reaches_everything_and_leaves_again(tab: Any) -> None:
    run = network(4, 20)
    page = tab.open(report(build(run, sick_diagnosis(run))))
    page.evaluate("document.body.setAttribute('tabindex', '-1'); document.body.focus()")
    seen: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "(e => e === document.body ? 'end' : e.closest('section, header')?.id || 'head')"
                "(document.activeElement)"
            )
        )
        if seen[-1] == "end":
            break
    order = list(dict.fromkeys(seen))
    assert order == [
        "head",
        "health",
        "findings",
        "map",
        "flow",
        "analyses",
        "activations",
        "recording",
        "end",
    ]
    tab.quiet()


def test_everything_that_acts_has_a_name_and_every_picture_words(tab: Any) -> None:
    run = network(4, 20)
    page = tab.open(report(build(run, sick_diagnosis(run))), "#layer=net.1")
    nameless = page.evaluate(
        "[...document.querySelectorAll('a, button, input, select, summary, [tabindex], canvas,"
        " figure, [role=img]')].filter(e => e !== document.body && !e.closest('[aria-hidden=true]')"
        " && !e.closest('figure[aria-label]') && !(e.innerText || '').trim() && !e.ariaLabel"
        " && !e.closest('label')?.innerText.trim()).map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    tab.quiet()


def test_words_in_the_flow_can_be_read_on_their_colour(tab: Any) -> None:
    run = network(12, 5, fading=True)
    page = tab.open(report(build(run, Told())))
    for scheme in Scheme:
        page.select_option("#map select >> nth=2", str(scheme))
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        pairs = page.locator("#flow .node").evaluate_all(
            "ns => ns.map(n => [getComputedStyle(n.querySelector('rect')).fill,"
            " getComputedStyle(n.querySelector('text')).fill])"
        )
        for pair in pairs:
            colours = [tuple(map(int, re.findall(r"\d+", text)[:3])) for text in pair]
            light, dark = sorted((luminance(c) for c in colours), reverse=True)  # type: ignore[arg-type]
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (scheme, pair)
    tab.quiet()


def test_the_help_takes_the_focus_and_gives_it_back(tab: Any) -> None:
    page = tab.open(report(build(network(3, 10), Told())))
    page.locator("#map .cells canvas").focus()
    page.keyboard.press("?")
    page.locator("button:focus", has_text="close").wait_for()
    page.keyboard.press("Escape")
    assert page.locator(".help").count() == 0
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    tab.quiet()


def test_paper_is_white_and_unfolded_and_the_screen_comes_back(tab: Any) -> None:
    run = network(3, 20)
    page = tab.open(report(build(run, sick_diagnosis(run))))
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})  # paper is narrower than the screen was
    for drawn in page.locator(".flow svg, .plot canvas, .heatmap canvas").all():
        box = drawn.bounding_box()
        assert box["x"] + box["width"] <= 720
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.until(lambda: page.evaluate("document.documentElement.dataset.theme") == "dark")
    assert page.locator("details[open]").count() == 0
    tab.quiet()


def test_the_list_of_runs_fits_a_phone(tab: Any, tmp_path: Path) -> None:
    for name in ("first", "second-with-a-rather-long-name-of-a-run"):
        stored(network(4, 30), tmp_path / name, name)
    tab.page.set_viewport_size({"width": 390, "height": 800})
    with listening(tmp_path) as (host, keys, tokens):
        keys.announce()
        tab.page.goto(f"http://{host}/?token={tokens[-1]}")
        row = tab.page.locator("table.runs tr", has_text="second-with")
        row.wait_for()
        tab.until(lambda: row.locator(".spark").count() == 1)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert row.locator("a").bounding_box()["width"] > 200
        loss = network(4, 30).scalars["loss"]
        told = row.locator(".spark").get_attribute("aria-label")
        assert told == f"loss from {number(float(loss[0]))} to {number(float(loss[-1]))}"
        tab.quiet()


def test_a_loss_that_is_not_finite_is_said_and_shaded(tab: Any) -> None:
    nan = float("nan")
    logged = {"loss": [1.0, 0.5, nan, nan, 0.25], "loss_nonfinite": [nan, nan, 1.0, 1.0, nan]}
    page = tab.open(report(build(make_run({}, scalars=logged), Told())))
    assert page.inner_text("#lost") == (
        "The loss was NaN or Inf on 2 steps: first on step 2, last on step 3."
    )
    told = page.locator("#loss .chart").first.get_attribute("aria-label")
    assert "steps 2 to 3 are shaded" in told
    assert legend(page, "#loss") == ["4", "0.25"]
    tab.quiet()
