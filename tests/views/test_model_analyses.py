"""The section of the analyses: the verdict's words, the analyses' numbers, in bounds."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.making import make_run
from tests.views.samples import HOSTILE, Told, network, sick_diagnosis, together

from gradwatch.analysis.weights import analyze_weights
from gradwatch.diagnosis import diagnose, verdicts
from gradwatch.finding import Severity
from gradwatch.run import Run
from gradwatch.views.model import build, to_json
from gradwatch.views.model.analyses import Analyses, analyses


def section(run: Run) -> Analyses:
    return analyses(run, diagnose(run))


@pytest.mark.parametrize(
    "run",
    [
        network(6, 60),
        network(6, 60, fading=True),
        network(6, 60, broken_from=30),
        make_run({"grad_norm": np.tile([1.0, 0.0], (40, 1))}, names=["a.weight", "b.weight"]),
        Run.from_norms({"a": 10 ** np.linspace(-2, 6, 100), "b": np.ones(100)}),
    ],
    ids=["healthy", "fading", "broken", "dead", "exploding"],
)
def test_every_word_of_health_is_the_verdicts(run: Run) -> None:
    found, said = section(run), verdicts(run)
    assert found["target_count"] == len(found["targets"])
    rows = [row for row in found["targets"] if row["kind"] == "layer"]
    assert len(rows) == len(run.layers)
    for row in rows:
        severity = said.severity(row["name"])
        grave = severity is not None and severity >= Severity.WARNING
        assert row["state"] == (severity.word if severity and grave else "healthy")
        assert bool(row["reasons"]) == grave
    for tensor in found["weights"]:
        severity = said.tensor_severity(tensor["name"])
        assert (tensor["state"] in ("warning", "critical")) == bool(severity and severity > 1)


def test_the_diagnosis_of_the_page_is_the_one_that_judges() -> None:
    run = network(4, 40)
    found = analyses(run, sick_diagnosis(run))
    states = {row["name"]: row["state"] for row in found["targets"]}
    assert [states[name] for name in run.layers] == ["critical", "healthy", "healthy", "healthy"]
    assert found["network"][0]["text"] == "1 critical, 3 healthy of 4."


def test_a_layer_without_weights_that_a_finding_names_comes_first() -> None:
    run = network(4, 40)
    finding = replace(sick_diagnosis(run).findings[0], check="nonfinite", layers=("relu", "net.1"))
    rows = analyses(run, Told((finding,), healthy=False))["targets"]
    assert (rows[0]["name"], rows[0]["state"], rows[0]["share"]) == ("relu", "critical", None)
    assert rows[0]["reasons"] == ["nonfinite since step 7"]
    assert rows[0]["actions"][0].startswith("Find the first NaN")


def test_shares_and_decades_are_those_of_the_norms() -> None:
    run = network(5, 30, fading=True)
    found = {row["name"]: row for row in section(run)["targets"]}
    norms = np.hypot(*(run.series["grad_norm"][:, part::2] for part in (0, 1)))
    squares = norms.mean(axis=0) ** 2
    decades = np.log10(np.median(norms, axis=0) / np.sqrt(72))
    for i, name in enumerate(run.layers):
        assert found[name]["share"] == pytest.approx(squares[i] / squares.sum(), rel=0.01)
        away = decades[i] - np.median(decades)
        assert found[name]["decades"] == pytest.approx(away, rel=0.01, abs=1e-9)


def test_groups_add_up_to_the_whole_gradient() -> None:
    for level in section(together())["levels"]:
        assert sum(bar["share"] or 0 for bar in level["bars"]) == pytest.approx(1, abs=0.01)
        assert sum(bar["layers"] for bar in level["bars"]) == 8
        assert not any(bar["name"].startswith(f"{level['name']} ") for bar in level["bars"])


def test_the_matrix_holds_the_layers_that_move_together() -> None:
    matrix = section(together())["matrix"]
    assert matrix is not None
    assert not {"blocks.6.weight", "blocks.7.weight"} & set(matrix["names"])
    sides = [0 if int(name.split(".")[1]) < 4 else 1 for name in matrix["names"]]
    kinds = {True: "cooperative", False: "competitive"}
    told = [(row, column, kind) for row, column, _, kind in matrix["pairs"]]
    assert told
    assert all(row < column for row, column, _ in told)
    assert all(kind == kinds[sides[row] == sides[column]] for row, column, kind in told)


def test_independent_layers_have_no_matrix_and_that_is_said() -> None:
    found = section(network(4, 60))
    assert found["matrix"] is None
    assert "chance" in found["missing"]["matrix"]


def test_the_network_is_told_in_sentences() -> None:
    for run in (network(4, 60), network(4, 60, broken_from=20), network(3, 1)):
        facts = section(run)["network"]
        names = [fact["name"] for fact in facts if fact["name"] != "described"]
        assert names[:3] == ["layers", "phase", "plateau"]
        for fact in facts:
            assert fact["text"][0].isupper() or fact["text"][0].isdigit()
            assert fact["text"].endswith(".")
            assert "None" not in fact["text"].removeprefix("None:")


def test_a_run_that_went_nan_is_described_up_to_there_and_says_so() -> None:
    broken, whole = section(network(4, 60, broken_from=20)), section(network(4, 60))
    facts = {fact["name"]: fact["text"] for fact in broken["network"]}
    assert facts["described"] == "The steps before 20; then came NaN or Inf."
    assert "described" not in [fact["name"] for fact in whole["network"]]


def test_weights_have_outliers_and_entropy_where_the_elements_are_there() -> None:
    random = np.random.default_rng(0)
    tensors = {f"l{i}.weight": random.normal(0, 1, (40, 40)) for i in range(3)}
    tensors["l1.weight"][3, 4] = 60.0
    run = Run.from_arrays(weights={name: [values] for name, values in tensors.items()})
    bare = section(run)
    assert bare["missing"].keys() == {"gradients", "outliers", "entropy"}
    assert bare["targets"] == bare["network"] == bare["levels"] == []
    whole = analyses(run, diagnose(run), analyze_weights(tensors))
    rows = {row["name"]: row for row in whole["weights"]}
    assert [rows[name]["outliers"] for name in tensors] == [0, 1, 0]
    assert all(0 < (row["entropy"] or 0) < 1 for row in rows.values())
    assert rows["l0.weight"]["std"] == pytest.approx(tensors["l0.weight"].std(), rel=0.01)


def test_lists_are_cut_and_say_how_many_there_are() -> None:
    names = [f"blocks.{i // 4}.part{i % 4}" for i in range(900)]
    found = section(network(names=names, steps=12))
    assert (len(found["targets"]), found["target_count"]) == (30, 900)
    blocks = found["levels"][0]
    assert (len(blocks["bars"]), blocks["count"]) == (12, 225)
    assert len(to_json({"analyses": found})) < 40_000


def test_a_run_too_large_says_so_and_costs_nothing() -> None:
    run = Run.from_norms({"a": np.ones(1_000_001), "b": np.ones(1_000_001)})
    found = analyses(run, Told())
    assert found["targets"] == found["weights"] == []
    assert "gradwatch analyze" in found["missing"]["gradients"]
    many = analyses(network(names=[f"l{i}" for i in range(5_001)], steps=2), Told())
    assert many["missing"].keys() == {"gradients", "weights"}


def test_a_stretch_of_a_run_and_one_not_diagnosed_have_no_analyses() -> None:
    run = network(4, 40)
    assert build(run, Told(), first=10).analyses is None
    assert build(run, Told(), with_paths=False).analyses is None
    assert build(run).analyses is None
    assert build(run, Told()).analyses is not None


def test_whatever_the_run_it_is_strict_json() -> None:
    nothing = make_run({"grad_norm": np.full((12, 2), np.nan)}, names=["a.weight", "b.weight"])
    bare = make_run({}, names=["a"])
    for run in (network(names=HOSTILE, steps=20), network(1, 1), nothing, bare):
        text = to_json(build(run, diagnose(run), sections=["analyses"]))
        assert json.loads(text, parse_constant=pytest.fail)["analyses"] is not None
