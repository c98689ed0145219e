"""Runs, diagnoses, findings and analyses show themselves in notebooks: static, small, escaped."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tests.making import make_run
from tests.views.samples import HOSTILE, network, sick_diagnosis

from gradwatch.analysis.drift import analyze_drift
from gradwatch.analysis.explosion import detect_gradient_explosion
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.diagnosis import diagnose
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.text import number

MOST = 40_000
"""Characters of one piece: a notebook with ten of them is still small."""


def weights(names: list[str]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.normal(0, 0.1, (12, 12)) for name in names}


def drifted(names: list[str]) -> Any:
    before = weights(names)
    return analyze_drift(before, {name: 1.1 * tensor for name, tensor in before.items()})


def trained(names: list[str]) -> Run:
    return network(names=names, steps=20, fading=True)


ANALYSES: Mapping[str, Callable[[list[str]], Any]] = {
    "gradients": lambda names: analyze_gradients(trained(names)),
    "flow": lambda names: analyze_flow(trained(names)),
    "explosion": lambda names: detect_gradient_explosion(weights(names), 1.0),
    "weights": lambda names: analyze_weights(weights(names)),
    "drift": drifted,
}
"""Every door of the analyses."""


def rows(html: str) -> list[list[str]]:
    """The cells of every table row, without their markup."""
    found = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in found]


def test_a_run_shows_its_size_and_its_loss() -> None:
    run = network(4, 50)
    html = run._repr_html_()
    loss = run.scalars["loss"]
    assert "50 (0 to 49)" in html
    assert f"loss from {loss[0]:.3g} to {loss[-1]:.3g}" in html
    assert len(html) < 5000


def test_nothing_in_a_name_becomes_markup() -> None:
    run = make_run({}, scalars={name: [1.0, 2.0] for name in HOSTILE}, info={"name": HOSTILE[0]})
    html = run._repr_html_()
    assert not re.search(r"<(script|img|svg onload)", html)
    assert "&lt;/script&gt;" in html


def test_runs_without_anything_show_themselves_too() -> None:
    empty = Run.from_norms({})
    assert "nothing" in make_run({})._repr_html_()
    assert "0, 0" in empty._repr_html_()
    nan = make_run({"grad_norm": np.ones((2, 1))}, names=["a"], scalars={"loss": [np.nan, np.nan]})
    assert "svg" not in nan._repr_html_()


def test_a_finding_shows_what_where_when_and_by_which_evidence() -> None:
    finding = sick_diagnosis(network(6, 50, fading=True)).findings[0]
    html = finding._repr_html_()
    assert "vanishing-gradient</b> (critical) <code>net.0</code>" in html
    assert "steps 7 to 49" in html
    assert "<li>Add normalisation or residual connections before this layer.</li>" in html
    assert rows(html)[1] == ["grad_norm", "net.0.weight", "7", "1.0e-05", "1.0e-04"]
    assert len(html) < 2000


def test_what_follows_from_a_finding_is_listed_and_counted() -> None:
    after = Finding("slow-convergence", Severity.INFO, (), 3, 9, "the loss stands still")
    layers = tuple(f"layer{i}" for i in range(9))
    finding = Finding("bad-init", Severity.WARNING, layers, 0, 9, "m", consequences=(after,) * 50)
    html = finding._repr_html_()
    assert "and 6 more" in html
    assert html.count("the loss stands still") == 20


def test_an_analysis_shows_the_numbers_it_has() -> None:
    run = network(6, 60, fading=True)
    found = analyze_gradients(run)
    table = {row[0]: row for row in reversed(rows(found._repr_html_())) if row}
    for name, detail in found.layer_details.items():
        assert number(detail.gradient_statistics.mean) in table[name]
        assert detail.health_metrics.overall_health.value in table[name]
    drift = drifted(["a.weight"])
    facts = {row[0]: row[1] for row in rows(drift._repr_html_()) if len(row) == 2}
    assert facts["mean drift"] == number(drift.mean_drift)


def test_what_could_not_be_measured_tells_why() -> None:
    few = analyze_weights({"a": np.array([1.0, 2.0])})
    html = few._repr_html_()
    reason = few.overall_statistics.missing["skewness"]
    assert f'title="{reason}">–</td>' in html


@pytest.mark.parametrize("kind", ANALYSES)
def test_large_analyses_stay_small_and_say_what_is_left_out(kind: str) -> None:
    names = [f"model.layers.{i}.attention.projection" for i in range(400)]
    html = ANALYSES[kind](names)._repr_html_()
    assert html.startswith("<div><b>")
    assert len(html) < MOST
    if kind in ("gradients", "flow", "weights", "drift"):
        assert "and 388 more: to_dict() has them" in html


@pytest.mark.parametrize("kind", ANALYSES)
def test_hostile_layers_make_no_markup_in_an_analysis(kind: str) -> None:
    html = ANALYSES[kind](HOSTILE)._repr_html_()
    plain = ANALYSES[kind]([f"layer{i}" for i in range(len(HOSTILE))])._repr_html_()
    tags = re.compile(r"<(/?\w+)")
    assert tags.findall(html) == tags.findall(plain)
    assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202e\u2066\u200b]", html)
    html.encode()
    assert len(html) < MOST


def test_hostile_texts_make_no_markup_in_findings_and_diagnoses() -> None:
    for text in HOSTILE:
        finding = Finding(
            text,
            Severity.WARNING,
            (text,) * 4,
            0,
            1,
            text,
            (Evidence(text, text, 0, 1.0),),
            text,
            (text,),
            (Finding(text, Severity.INFO, (text,), 0, 1, text),),
        )
        html = finding._repr_html_()
        tags = set(re.findall(r"<(\w+)", html))
        assert tags == {"div", "b", "code", "br", "ul", "li", "table", "tr", "th", "td"}
        assert len(html) < 8000
        html.encode()
    shown = diagnose(network(names=HOSTILE, steps=40, fading=True))._repr_html_()
    assert set(re.findall(r"<(\w+)", shown)) <= {
        *("div", "b", "ul", "li", "code", "br", "i", "p", "details", "summary"),
    }
    assert "\u202e" not in shown
    shown.encode()
