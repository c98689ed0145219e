"""The parts of the page one by one, their numbers read back, and every run in every page."""

import inspect
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.runs import RUNS, many_layers, value_in
from tests.server.visiting import listening
from tests.views.samples import Told, network, sick_diagnosis
from tests.views.stored import stored

from gradwatch.checks import vanishing_gradient
from gradwatch.text import number
from gradwatch.views.colours import Scheme, ramp
from gradwatch.views.model import build
from gradwatch.views.page import player, report

pytestmark = pytest.mark.browser
PLAYED = [kind for kind in RUNS if kind not in ("weights only", "nothing")]


def steps_shown(page: Any) -> tuple[int, int]:
    first = page.inner_text("#map [data-step=first]").removeprefix("step ")
    return int(first), int(page.inner_text("#map [data-step=last]"))


def shown_step(page: Any) -> int:
    return int(page.inner_text("#flow-step").split()[1])


def test_the_path_that_loses_most_and_the_regions_are_told(tab: Any) -> None:
    run = network(6, 60, fading=True)
    model = build(run, sick_diagnosis(run))
    page = tab.open(report(model))
    lines = page.locator("#flow .troubles li").all_inner_texts()
    path = model.flow["paths"][0]
    assert path["decades_lost"] == pytest.approx(5, abs=0.5)
    assert f"{number(path['decades_lost'])} decades lost on the way back" in lines[0]
    assert f"{len(path['layers'])} layers from net.0 to net.5" in lines[0]
    region = model.flow["regions"][0]
    told = next(line for line in lines if line.startswith(f"{region['kind']} region"))
    assert f"steps {region['first_step']}–{region['last_step']}" in told
    assert page.locator("#flow .edge.critical").count() == len(path["layers"]) - 1
    tab.quiet()


def test_the_explanation_is_folded_under_its_finding(tab: Any) -> None:
    run = network(6, 50, fading=True)
    page = tab.open(report(build(run, sick_diagnosis(run))))
    folded = page.locator(".finding .explanation").first
    assert not folded.is_visible()
    page.locator(".finding summary").first.click()
    assert (
        folded.inner_text().splitlines()[0]
        == inspect.cleandoc(vanishing_gradient.__doc__ or "").splitlines()[0]
    )
    tab.quiet()


def test_learning_rate_band_and_activations_tell_their_numbers(tab: Any) -> None:
    run = network(4, 33)
    page = tab.open(report(build(run, Told())))
    rates = page.locator("#loss .chart >> nth=1")
    assert rates.locator(".u-value").all_inner_texts() == ["32", "1.0e-03"]
    assert "band from 1.0e-05 to 0.1 is" in " ".join(page.inner_text("#updates p").split())
    canvas = page.locator("#activations canvas[role=img]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.hover(position={"x": 2, "y": 2.5 / 4 * box["height"]})
    tip = page.inner_text("#activations .tip")
    assert tip.startswith("net.2, step 0: ")
    assert value_in(tip) == pytest.approx(run.series["act_std"][0, 2], rel=0.06)
    tab.quiet()


def test_a_link_leads_to_a_view_a_statistic_and_an_order(tab: Any) -> None:
    run = network(6, 40, fading=True)
    text = report(build(run, sick_diagnosis(run)))
    page = tab.open(text, "#view=flow&stat=update_ratio&sort=badness&step=8")
    top = "document.getElementById('flow').getBoundingClientRect().top"
    tab.until(lambda: 0 <= page.evaluate(top) < 200)
    assert page.inner_text("#map .name >> nth=0") == "net.0"
    assert page.inner_text("#flow-step") == "step 8"
    page.locator("#map .cells canvas").hover(position={"x": 3, "y": 3})
    expected = run.series["update_ratio"][0, 0]
    assert value_in(page.inner_text("#map .tip")) == pytest.approx(expected, rel=0.06)
    tab.quiet()


def test_zoomed_in_one_moves_along(tab: Any) -> None:
    page = tab.open(report(build(network(4, 100), Told())))
    canvas = page.locator("#map .cells canvas")
    canvas.focus()
    page.keyboard.press("+")
    assert steps_shown(page) == (0, 49)
    assert page.get_by_text("← earlier").is_disabled()
    page.get_by_text("later →").click()
    assert steps_shown(page) == (25, 74)
    canvas.focus()
    page.keyboard.press("]")
    assert steps_shown(page) == (50, 99)
    canvas.hover(position={"x": 20, "y": 10})
    page.mouse.wheel(-200, 0)
    tab.until(lambda: 0 < steps_shown(page)[0] < 50)
    page.get_by_text("all steps").click()
    assert steps_shown(page) == (0, 99)
    tab.quiet()


def test_playing_moves_the_step_the_nodes_and_the_loss_cursor(tab: Any) -> None:
    run = network(4, 60, fading=True)
    page = tab.open(report(build(run, Told())), "#step=0")
    page.select_option("#flow .playback select", "45")
    before = page.locator("#flow .node").nth(3).get_attribute("aria-label")
    page.get_by_text("▶ play").click()
    tab.until(lambda: shown_step(page) >= 20)
    page.locator("#flow .playback button").click()
    # A last tick may come between two looks: both are taken until nothing moved between them.
    pairs: list[tuple[int, str]] = []

    def still() -> bool:
        step = shown_step(page)
        pairs.append((step, page.locator("#flow .node").nth(3).get_attribute("aria-label")))
        return shown_step(page) == step

    tab.until(still)
    step, told = pairs[-1]
    assert told != before
    truth = run.series["grad_norm"][step, 6] / 8
    assert float(told.rpartition(": ")[2]) == pytest.approx(truth, rel=0.06)
    tab.quiet()


def test_the_player_plays_every_run(tab: Any) -> None:
    for kind in PLAYED:
        run, told = RUNS[kind]()
        model = build(run, told or sick_diagnosis(run))
        page = tab.open(player(model, "cividis"))
        page.set_viewport_size({"width": 390, "height": 800})
        page.keyboard.press("End")
        assert page.inner_text("#flow-step") == f"step {run.steps[-1]}", kind
        labels = page.locator("#flow .node").evaluate_all("ns => ns.map(n => n.ariaLabel)")
        assert len(labels) == len(model.flow["nodes"]), kind
        if kind == "nothing finite":
            assert all(label.endswith("NaN or Inf, non-finite") for label in labels)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, kind
        tab.quiet()


def test_the_live_page_shows_every_run(tab: Any, tmp_path: Path) -> None:
    kinds = [kind for kind in RUNS if kind not in ("weights only", "nothing", "many layers")]
    for kind in kinds:
        stored(RUNS[kind]()[0], tmp_path / kind.replace(" ", "-"), kind)
    with listening(tmp_path) as (host, keys, tokens):
        keys.announce()
        tab.page.goto(f"http://{host}/?token={tokens[-1]}")
        tab.page.wait_for_selector("table.runs")
        for kind in kinds:
            row = tab.page.locator("table.runs tr", has=tab.page.get_by_text(kind, exact=True))
            row.locator("a").click()
            tab.page.wait_for_selector("#map .cells canvas")
            run = RUNS[kind]()[0]
            many = f"{len(run.steps)} step{'' if len(run.steps) == 1 else 's'}"
            assert many in tab.page.inner_text("#health")
            assert steps_shown(tab.page)[1] == run.steps[-1]
            low = tab.page.inner_text("#map [data-scale=low]")
            sizes = np.sqrt([subject.count for subject in run.parameters])
            values = run.series["grad_norm"] / sizes
            if np.isfinite(values).any():
                assert float(low) <= 1.01 * np.nanmin(values)
            tab.page.go_back()
            tab.page.wait_for_selector("table.runs")
        tab.quiet()


def pixels(page: Any) -> Any:
    """The map's canvas as [line, column, rgb]."""
    found = page.evaluate(
        "(() => { const c = document.querySelector('#map .cells canvas');"
        " const copy = new OffscreenCanvas(c.width, c.height);"
        " const context = copy.getContext('2d', { willReadFrequently: true });"
        " context.drawImage(c, 0, 0);"
        " return [c.height, c.width, [...context.getImageData(0, 0, c.width, c.height).data]] })()"
    )
    return np.array(found[2]).reshape(found[0], found[1], 4)[..., :3]


def test_nonfinite_cannot_be_mistaken_for_a_level_in_any_scheme(tab: Any) -> None:
    page = tab.open(report(build(network(5, 20, fading=True, broken_from=10), Told())))
    looks = []
    for scheme in Scheme:
        page.select_option("#map select >> nth=2", str(scheme))
        tab.until(lambda: not looks or not np.array_equal(pixels(page)[:6], looks[-1]))
        seen = pixels(page)
        broken, levels = seen[6:9, 10:], np.array(ramp(scheme))
        if scheme is Scheme.MONO:
            assert len({tuple(p) for p in broken.reshape(-1, 3).tolist()}) == 2  # chequered
        else:
            assert np.abs(levels - broken[0, 0]).sum(axis=1).min() > 60
        looks.append(seen[:6])
        highest = np.abs(seen[12:15, 0] - levels[-1]).sum()
        assert highest < np.abs(seen[0:3, 0] - levels[-1]).sum()
    for one, other in combinations(looks, 2):
        assert np.abs(one - other).sum(axis=2).mean() > 20
    tab.quiet()


def test_a_block_opens_by_its_cells_too(tab: Any) -> None:
    page = tab.open(report(build(many_layers(), Told())))
    canvas = page.locator("#map .cells canvas")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    names = page.locator("#map .name").all_inner_texts()[:3]
    assert names == ["▸ blocks.0 (10)", "▾ blocks.1 (10)", "blocks.1.part0"]
    canvas.click(position={"x": 5, "y": 20})
    assert page.locator("#map .name").nth(2).inner_text() == "▸ blocks.2 (10)"
    tab.quiet()
