"""The view model against the runs it shows."""

import json
import math

import numpy as np
import pytest
from tests.making import make_run
from tests.views.samples import HOSTILE, network, sick_diagnosis

from gradwatch.diagnosis import diagnose
from gradwatch.errors import GradwatchError
from gradwatch.finding import Severity
from gradwatch.graph import Graph, Node
from gradwatch.run import block_of
from gradwatch.views.model import build, to_json
from gradwatch.views.model.flow import flow
from gradwatch.views.model.heat import (
    Code,
    LevelScale,
    coded,
    codes_of,
    decoded,
    packed,
    row_of,
    unpacked,
)
from gradwatch.views.model.titles import shown


def no_constant(word: str) -> float:
    raise AssertionError(f"{word} is not JSON")


def test_cells_give_back_numbers_within_half_a_level() -> None:
    values = np.array([[1e-9, 3e-5, 0.2], [0.0, np.nan, 7.0]])
    scale = LevelScale.around(values, log=True)
    codes = coded(values, scale, np.zeros((2, 3), bool), np.zeros((2, 3), bool))
    back = decoded(codes, scale)
    half = (math.log(scale.high) - math.log(scale.low)) / 251 / 2
    there = np.isfinite(values) & (values > 0)
    assert np.abs(np.log(back[there]) - np.log(values[there])).max() <= half * 1.001
    assert back[1, 0] == 0.0
    assert np.isnan(back[1, 1])
    assert (unpacked(packed(codes), 2, 3) == codes).all()


def test_nonfinite_is_told_before_any_level() -> None:
    values = np.array([[1.0, np.nan]])
    scale = LevelScale.around(values, log=True)
    codes = coded(values, scale, np.array([[True, True]]), np.array([[False, True]]))
    assert codes.tolist() == [[Code.NONFINITE, Code.NONFINITE]]


@pytest.mark.parametrize(("columns", "at"), [(20, 12), (5, 3)])
def test_overflow_on_steps_that_a_scaler_skipped_is_not_marked(columns: int, at: int) -> None:
    nan = np.zeros((20, 2))
    nan[[4, 12], 0] = 1
    skipped = np.zeros(20)
    skipped[4] = 1
    run = make_run(
        {"grad_norm": np.where(nan > 0, np.nan, 1.0), "grad_nan": nan},
        names=["a.weight", "b.weight"],
        scalars={"skipped": skipped},
    )
    codes, _ = codes_of(build(run, columns=columns, stats=["grad_rms"]).heat, "grad_rms")
    assert np.argwhere(codes == Code.NONFINITE).tolist() == [[0, at]]
    assert diagnose(run).findings[0].first_step == 12


def test_outputs_that_are_masks_are_not_marked_and_others_are() -> None:
    for begin, marked in ((0, False), (8, True)):
        bad = np.zeros((20, 1))
        bad[begin:] = 1
        values = {"act_std": np.ones((20, 1)), "probe_nonfinite": bad}
        run = make_run(values, layers=["a"], scalars={"loss": np.ones(20)})
        codes, _ = codes_of(build(run, stats=["act_std"]).heat, "act_std")
        assert (codes == Code.NONFINITE).any() == marked
        assert bool(diagnose(run).at_least(Severity.WARNING)) == marked


def test_the_map_holds_the_gradient_rms_of_every_tensor() -> None:
    run = network(5, 40, fading=True)
    codes, scale = codes_of(build(run).heat, "grad_rms")
    naive = run.series["grad_norm"] / np.sqrt([s.count for s in run.parameters])
    assert np.allclose(decoded(codes, scale).T, naive, rtol=0.05)


def test_a_rare_series_has_only_the_columns_it_was_sampled_in() -> None:
    model = build(network(3, 40))
    found = model.heat["maps"]["act_std"]
    assert [model.heat["first"][c] for c in found["columns"]] == [0, 16, 32]


def test_one_spike_in_a_million_steps_is_seen_at_every_zoom() -> None:
    norms = np.ones((1_000_000, 2))
    norms[612_345, 1] = 1e6
    run = make_run({"grad_norm": norms}, names=["a.weight", "b.weight"])
    for half in (1_000_000, 100_000, 1_000, 30):
        window = {"first": max(0, 612_345 - half), "last": 612_345 + half}
        model = build(run, stats=["grad_norm"], with_paths=False, **window)
        codes, scale = codes_of(model.heat, "grad_norm")
        assert decoded(codes, scale)[1].max() == pytest.approx(1e6, rel=0.1)
        assert decoded(codes, scale)[0].max() == pytest.approx(1, rel=0.1)


def test_everything_is_strict_json_whatever_the_run() -> None:
    runs = [
        network(5, 40, broken_from=3),
        network(2, 1),
        network(names=HOSTILE, steps=5),
        make_run({"grad_norm": np.full((4, 2), np.nan)}, names=["a.weight", "b.weight"]),
        make_run({}, names=["a.weight"]),
    ]
    for run in runs:
        text = to_json(build(run, sick_diagnosis(run) if len(run.steps) else None))
        assert text.isascii()
        assert not set("<>&") & set(text)
        assert json.loads(text, parse_constant=no_constant)["format"] == 1


def test_hostile_names_come_back_unchanged() -> None:
    run = network(names=HOSTILE, steps=5)
    names = [layer["name"] for layer in json.loads(to_json(build(run)))["layers"]]
    assert names == HOSTILE


def test_a_finding_carries_its_chart_with_moment_and_limit() -> None:
    run = network(6, 50, fading=True)
    model = build(run, sick_diagnosis(run))
    first = model.findings[0]
    chart = first["charts"][0]
    assert (first["check"], first["first_step"]) == ("vanishing-gradient", 7)
    assert (chart["step"], chart["limit"], chart["subject"]) == (7, 1e-4, "net.0.weight")
    assert chart["last"][7] == pytest.approx(run.column("grad_norm", "net.0.weight")[7], rel=1e-5)
    assert model.health["state"] == "sick"
    assert model.findings[1]["charts"][0]["title"] == "loss"


def test_a_run_without_diagnosis_is_not_called_healthy() -> None:
    assert build(network(2, 5)).health["state"] == "unknown"


def test_the_layer_with_the_finding_is_worst() -> None:
    run = network(6, 50, fading=True)
    bad = [layer["badness"] for layer in build(run, sick_diagnosis(run)).layers]
    assert int(np.argmax(bad)) == 0


def test_the_window_cuts_every_part() -> None:
    model = build(network(3, 60), first=20, last=29)
    assert model.heat["first"] == list(range(20, 30))
    assert model.scalars[0]["x"] == list(range(20, 30))
    assert model.window == [20, 29]
    assert model.run["last_step"] == 59


def test_the_budget_of_cells_holds_for_a_large_model() -> None:
    run = make_run(
        {"grad_norm": np.ones((500, 10_000))}, names=[f"l{i}.weight" for i in range(10_000)]
    )
    codes, _ = codes_of(build(run).heat, "grad_rms")
    assert codes.size <= 1_100_000


def test_update_spread_is_the_quantiles_over_weights() -> None:
    run = network(5, 12)
    spread = build(run).updates
    ratios = run.series["update_ratio"][[0, 4, 8]][:, ::2]
    assert spread["x"] == [0, 4, 8]
    assert np.allclose(spread["median"], np.median(ratios, axis=1), rtol=1e-5)
    assert np.allclose(spread["highest"], ratios.max(axis=1), rtol=1e-5)


def test_ridges_hold_the_histograms() -> None:
    ridge = build(network(2, 40)).weight_histograms[0]
    assert ridge["steps"] == [0, 16, 32]
    assert ridge["counts"] == [64, 64, 64]
    assert ridge["zeros"] == [1, 1, 1]
    assert len(ridge["heights"][0]) == 2 * (ridge["last_exponent"] - ridge["first_exponent"] + 1)
    assert max(ridge["heights"][0]) == 255


def test_flow_places_branches_beside_each_other() -> None:
    graph = Graph(
        tuple(Node(name) for name in "abcd"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))
    )
    nodes = flow(graph, ())["nodes"]
    assert [node["rank"] for node in nodes] == [0, 1, 1, 2]
    assert nodes[1]["lane"] != nodes[2]["lane"]


def test_a_deep_graph_is_grouped_into_blocks() -> None:
    graph = Graph.chain([f"h.{i}.{part}" for i in range(40) for part in ("attn", "mlp")])
    found = flow(graph, ())
    assert found["grouped"]
    assert [node["name"] for node in found["nodes"]][:2] == ["h.0", "h.1"]
    assert len(flow(Graph.chain([f"layer{i}" for i in range(5000)]), ())["nodes"]) <= 64
    deep = flow(Graph.chain([f"blocks.{i}.{j}" for i in range(500) for j in range(10)]), ())
    assert 32 <= len(deep["nodes"]) <= 64
    assert deep["nodes"][0]["name"] == "blocks.0–7"
    assert len(deep["edges"]) == len(deep["nodes"]) - 1


def test_a_cycle_in_the_graph_ends() -> None:
    graph = Graph((Node("a"), Node("b")), (("a", "b"), ("b", "a"), ("b", "b")))
    assert [node["rank"] for node in flow(graph, ())["nodes"]] == [0, 1]


def test_blocks_are_the_numbered_part() -> None:
    assert block_of("transformer.h.3.attn.c_proj") == "transformer.h.3"
    assert block_of("layers.12") == "layers.12"
    assert block_of("head") == "head"


def test_rows_of_layers_are_found_in_both_kinds_of_maps() -> None:
    model = build(network(4, 20))
    assert row_of(model.heat["maps"]["grad_rms"], model.layers[2]) == 4
    assert row_of(model.heat["maps"]["act_std"], model.layers[2]) == 2


def test_an_unknown_statistic_is_refused_with_a_sentence() -> None:
    with pytest.raises(GradwatchError, match="no statistic named 'nonsense'"):
        shown("nonsense")


def test_the_path_that_loses_most_and_its_region_are_told() -> None:
    found = build(network(8, 60, fading=True)).flow
    worst = next(path for path in found["paths"] if path["kind"] == "attenuating")
    assert (worst["layers"][0], worst["layers"][-1]) == ("net.0", "net.7")
    assert worst["decades_lost"] == pytest.approx(7, abs=0.3)
    assert [region["kind"] for region in found["regions"]] == ["vanishing"]
    assert found["regions"][0]["layers"][0] == "net.0"
    assert "paths" not in build(network(2, 5), with_paths=False).flow


def test_layers_without_a_gradient_say_so_and_gaps_do_not() -> None:
    norms = np.array([[1.0, np.nan], [np.nan, np.nan], [1.0, np.nan]])
    states = [[0, 2], [1, 2], [0, 2]]  # measured, not sampled; no gradient
    run = make_run({"grad_norm": norms}, names=["a.w", "b.w"], states={"grad_norm": states})
    codes, _ = codes_of(build(run, stats=["grad_rms"]).heat, "grad_rms")
    assert codes[1].tolist() == [Code.NO_GRADIENT] * 3
    assert codes[0, 1] == Code.EMPTY


@pytest.mark.parametrize("size", [1e-300, 1e-3, 1.0, 1e300])
def test_nearly_equal_values_are_drawn_in_the_middle_of_the_scale(size: float) -> None:
    values = size * np.array([0.9, 1.0, 1.1])
    scale = LevelScale.around(values, log=True)
    assert 0 < scale.low < values.min() < values.max() < scale.high < np.inf
    assert np.all(np.abs(scale.level(values) - 0.5) < 0.05)
    wide = LevelScale.around(np.array([1e-9, 1.0]), log=True)
    assert (wide.low, wide.high) == (1e-9, 1.0)


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({}, []),
        (
            {"spent": 0.92, "allowance": 2.0, "overhead_after_allowance": 0.0},
            ["Recording took 0.92 of its 2 free seconds."],
        ),
        (
            {"spent": 4.1, "allowance": 2.0, "overhead_after_allowance": 0.009},
            ["Recording took 2 of its 2 free seconds, then 0.9 % of the time."],
        ),
        (
            {"spent": 0.1, "allowance": 2.0, "background": 0.0042},
            [
                "Recording took 0.1 of its 2 free seconds.",
                "Writing took 0.42 % of a processor in a thread of its own.",
            ],
        ),
        ({"overhead": "much", "spent": None, "allowance": math.nan, "background": "none"}, []),
    ],
)
def test_the_price_is_told_with_what_is_free(info: dict[str, object], told: list[str]) -> None:
    run = make_run({"grad_norm": [[1.0], [2.0]]}, info=info)
    assert build(run).cost == told
