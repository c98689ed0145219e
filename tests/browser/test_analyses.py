"""The part of the analyses in a real browser: each kind of run, read, by keys, on a phone."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.runs import RUNS
from tests.views.samples import network, together

from gradwatch.cli.main import main
from gradwatch.diagnosis import diagnose, verdicts
from gradwatch.run import Run
from gradwatch.views.model import build
from gradwatch.views.page import report

pytestmark = pytest.mark.browser


def shown(tab: Any, run: Run) -> Any:
    return tab.open(report(build(run, diagnose(run))))


def headings(page: Any) -> list[str]:
    return page.locator("#analyses h3").all_inner_texts()  # type: ignore[no-any-return]


GRADIENTS = ["What to look at first", "Groups", "Layers that move together"]
NORMS = Run.from_norms({f"l{i}": np.full(30, 1.0 + i) for i in range(4)})
KINDS: dict[str, Callable[[], Run]] = {
    "healthy": lambda: network(6, 60),
    "sick": lambda: network(6, 60, fading=True),
    "broken": lambda: network(6, 60, broken_from=30),
    "norms only": lambda: NORMS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_part_is_there_in_the_words_of_the_verdict(tab: Any, kind: str) -> None:
    run = KINDS[kind]()
    page = shown(tab, run)
    assert headings(page) == GRADIENTS
    severities = [verdicts(run).severity(name) for name in run.layers]
    words = ["healthy" if grave is None else grave.word for grave in severities]
    assert (set(words) == {"healthy"}) == (kind in ("healthy", "norms only"))
    told = [f"{words.count(word)} {word}" for word in ("critical", "warning", "healthy")]
    counted = ", ".join(text for text in told if text[0] != "0")
    assert page.inner_text("#analyses .facts dd >> nth=0").startswith(f"{counted} of {len(words)}")
    badges = page.locator("#analyses .ranked tbody .badge").all_inner_texts()
    assert sorted(badge.split()[1] for badge in badges) == sorted(words)
    tab.quiet()


def test_a_layer_is_opened_from_its_row(tab: Any) -> None:
    page = shown(tab, network(6, 60, fading=True))
    row = page.locator("#analyses .ranked tbody tr >> nth=0")
    assert re.match(r"net\.0\s+▲ warning vanishing-gradient since step \d", row.inner_text())
    row.locator("button").click()
    assert page.inner_text("#layer h2").startswith("Layer net.0")
    tab.quiet()


def test_long_names_that_differ_in_the_middle_can_be_told_apart(tab: Any) -> None:
    names = [f"model.{'deep.' * 9}{i}.{'inside.' * 9}weight" for i in range(3)]
    page = shown(tab, Run.from_norms({name: [1.0 + i] * 12 for i, name in enumerate(names)}))
    told = page.locator("#analyses .ranked .link").all_inner_texts()
    assert sorted(told) == ["deep.0", "deep.1", "deep.2"]
    tab.quiet()


def test_a_checkpoint_shows_its_weights_and_nothing_else(tab: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {f"l{i}.weight": random.normal(0, 0.1, (40, 40)) for i in range(3)}
    tensors["l1.weight"][3, 4] = 9.0
    tensors["l2.weight"][:] = 0
    np.savez(tmp_path / "a.npz", **tensors)
    said = ["weights", str(tmp_path / "a.npz"), "-o", str(tmp_path / "a.html")]
    with pytest.raises(SystemExit):
        main(said)
    page = tab.open((tmp_path / "a.html").read_text())
    assert headings(page) == ["Weights"]
    assert page.locator("#analyses .facts").count() == 0
    rows = page.locator("#analyses .ranked tbody tr").all_inner_texts()
    assert re.match(r"l2\.weight\s+✗ critical constant-weights\s", rows[0])
    by_name = {row.split()[0]: row for row in rows}
    assert re.search(r"\s1 \(by chance [\d.]+\)", by_name["l1.weight"])
    assert "No analysis of the gradients" in page.inner_text("#analyses")
    tab.quiet()


def test_the_matrix_is_read_by_keys_and_painted_in_the_scheme(tab: Any) -> None:
    page = shown(tab, together())
    pairs = page.locator("#analyses .pair")
    pairs.first.focus()
    first = page.inner_text("#analyses .matrix .status")
    assert re.fullmatch(r"blocks\.0\S* and blocks\.\d\S*: \w+, [\d.]+", first)
    page.keyboard.press("ArrowRight")
    tab.until(lambda: page.inner_text("#analyses .matrix .status") != first)
    assert page.locator("#analyses .pair[tabindex='0']").count() == 1
    colour = "e => getComputedStyle(e).backgroundColor"
    before = pairs.first.evaluate(colour)
    page.select_option("#map select >> nth=2", "mono")
    tab.until(lambda: pairs.first.evaluate(colour) != before)
    grey = re.findall(r"\d+", pairs.first.evaluate(colour))
    assert grey[0] == grey[1] == grey[2]
    tab.quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(tab: Any, theme: str) -> None:
    tab.page.emulate_media(color_scheme=theme)
    tab.page.set_viewport_size({"width": 360, "height": 740})
    runs = [make() for make in KINDS.values()] + [together(), RUNS["hostile names"]()[0]]
    for run in runs:
        page = shown(tab, run)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        inside = page.evaluate(
            "[...document.querySelectorAll('#analyses :is(td, th, p, dd)')]"
            ".filter(e => !e.closest('.matrix') && e.getBoundingClientRect().right > 360).length"
        )
        assert inside == 0
    tab.quiet()


def test_a_path_is_drawn_where_it_runs_and_can_be_chosen(tab: Any) -> None:
    run = network(6, 60, fading=True)
    page = shown(tab, run)
    path = build(run, diagnose(run)).flow["paths"][0]["layers"]
    assert page.locator("#flow .node.critical").count() == len(path)
    assert page.locator("#flow .edge.critical").count() == len(path) - 1
    button = page.locator("#flow .troubles button[aria-pressed=true]")
    assert button.count() == 1
    button.click()
    tab.until(lambda: page.locator("#flow .critical").count() == 0)
    page.locator("#flow .troubles button[aria-pressed]").last.click()
    tab.until(lambda: page.locator("#flow .edge.critical").count() > 0)
    tab.quiet()
