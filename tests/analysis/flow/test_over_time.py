"""Layers over time: magnitudes, directions, trends."""

import itertools
import math

import numpy as np
import pytest
from tests.analysis.flow.runs import noise
from tests.making import make_run

from gradwatch.analysis.flow import FlowDirection, GradientFlow, analyze_flow, directions
from gradwatch.analysis.flow.directions import NO_COSINE
from gradwatch.run import Run
from gradwatch.stats import State

MOVES = {
    FlowDirection.GROWING: np.exp(np.arange(60) / 20),
    FlowDirection.SHRINKING: np.exp(-np.arange(60) / 20),
    FlowDirection.OSCILLATING: 1 + 0.4 * (-1.0) ** np.arange(60),
    FlowDirection.STAGNANT: noise(3, 60),
    FlowDirection.UNKNOWN: np.ones(3),
}


@pytest.mark.parametrize("direction", FlowDirection)
def test_every_direction(direction: FlowDirection) -> None:
    (flow,) = analyze_flow(Run.from_norms({"a": MOVES[direction]})).temporal_flows
    assert flow.flow_direction is direction


NEAR = {
    FlowDirection.GROWING: np.exp(noise(1, 60, 1.0) + np.arange(60) / 200),
    FlowDirection.SHRINKING: np.exp(noise(2, 60, 1.0) - np.arange(60) / 200),
    FlowDirection.OSCILLATING: noise(4, 60),
    FlowDirection.STAGNANT: noise(3, 60, 0.01) * np.exp(np.arange(60) / 100),
    FlowDirection.UNKNOWN: np.ones(9),
}


@pytest.mark.parametrize("direction", FlowDirection)
def test_no_direction_without_its_reason(direction: FlowDirection) -> None:
    (flow,) = analyze_flow({"a": NEAR[direction]}).temporal_flows
    assert flow.flow_direction is not direction


@pytest.mark.parametrize(
    ("norms", "direction"),
    [
        (10 ** (6 * (np.arange(50) / 50) ** 2), FlowDirection.GROWING),
        (np.linspace(1, 200, 100), FlowDirection.GROWING),
        (np.exp(-np.arange(20) / 10), FlowDirection.SHRINKING),
        (np.exp(-np.arange(5) / 10), FlowDirection.SHRINKING),
        (np.zeros(20), FlowDirection.STAGNANT),
        (np.zeros(5), FlowDirection.UNKNOWN),
    ],
)
def test_a_smooth_series_moves_where_it_goes(norms, direction: FlowDirection) -> None:
    (flow,) = analyze_flow({"a": norms}).temporal_flows
    assert flow.flow_direction is direction


def test_last_samples_of_layers_that_were_sampled_apart() -> None:
    steps = {"a": range(0, 90, 3), "b": [1, 4, 7], "c": range(90)}
    norms = {name: noise(i, len(steps[name])) for i, name in enumerate(steps)}
    flow = analyze_flow(Run.from_norms(norms, steps=steps), temporal_window=10)
    for name, found in zip(norms, flow.temporal_flows, strict=True):
        layer = flow.layer_flows[name]
        window = [(item.step, item.magnitude) for item in layer.gradient_directions]
        assert window == list(zip(steps[name], norms[name].tolist(), strict=True))[-10:]
        assert (found.step, found.gradient_magnitude) == (steps[name][-1], norms[name][-1])
        t, y = np.array([step for step, _ in window], float), np.log([norm for _, norm in window])
        rest = y - np.polyval(np.polyfit(t, y, 1), t)
        assert found.stability_score == pytest.approx(1 / (1 + math.sqrt(np.mean(rest**2))))
        assert list(layer.gradient_magnitudes) == norms[name].tolist()
        assert list(layer.magnitude_steps) == list(steps[name])
        changes = [abs(math.log(b / a)) for a, b in itertools.pairwise(norms[name])]
        assert layer.volatility == pytest.approx(math.fsum(changes) / len(changes))
        assert layer.flow_consistency == pytest.approx(1 / (1 + layer.volatility))
        before = [None, *norms[name]][-11:-1] if len(norms[name]) > 9 else [None, *norms[name][:-1]]
        for item, earlier in zip(layer.gradient_directions, before, strict=True):
            x = item.magnitude
            expected = 1.0 if earlier is None else 1 - abs(x - earlier) / (x + earlier)
            assert item.consistency_score == pytest.approx(expected)


@pytest.mark.parametrize("length", [256, 257, 7000, 7009])
def test_a_long_series_is_listed_by_its_extremes(length: int) -> None:
    values = np.exp(np.random.default_rng(length).normal(size=length))
    values[[3, 70]] = np.nan
    steps = [i for i in range(length) if i not in (3, 70)]
    run = Run.from_norms({"a": values[steps], "b": np.ones(length)}, steps={"a": steps, "b": None})
    flow = analyze_flow(run).layer_flows["a"]
    listed = dict(zip(flow.magnitude_steps, flow.gradient_magnitudes, strict=True))
    assert len(listed) == len(flow.gradient_magnitudes) <= 256
    assert list(listed) == sorted(listed)
    assert all(values[step] == norm for step, norm in listed.items())
    assert {0, length - 1, int(np.nanargmax(values)), int(np.nanargmin(values))} <= set(listed)
    if length > 256:
        size = -(-length // 127)
        for begin in range(0, length, size):
            part = values[begin : begin + size]
            assert begin + int(np.nanargmax(part)) in listed
            assert begin + int(np.nanargmin(part)) in listed
    else:
        assert list(listed) == steps


@pytest.mark.parametrize(("layers", "most"), [(64, 256), (128, 128), (600, 32)])
def test_many_layers_are_listed_more_briefly(layers: int, most: int) -> None:
    values = noise(0, 300 * layers).reshape(layers, 300)
    flows = analyze_flow({f"layer{i}": row for i, row in enumerate(values)}).layer_flows
    for flow, row in zip(flows.values(), values, strict=True):
        assert most / 2 < len(flow.magnitude_steps) <= most
        assert row[list(flow.magnitude_steps)].tolist() == list(flow.gradient_magnitudes)
        assert {row[0], row[-1], row.min(), row.max()} <= set(flow.gradient_magnitudes)


# -- directions ------------------------------------------------------------------------------------


def test_norms_alone_have_no_direction() -> None:
    layer = analyze_flow(Run.from_norms({"a": [1.0, 2.0]})).layer_flows["a"]
    scores = [item.consistency_score for item in layer.gradient_directions]
    assert scores == pytest.approx([1, 1 - 1 / 3])
    assert layer.direction_consistency is None
    assert layer.missing["direction_consistency"] == NO_COSINE


@pytest.mark.parametrize("chunk", [1, 12, directions.CHUNK])  # one layer at a time, two, all
def test_a_recorded_run_has_the_mean_cosine_of_whole_layers(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of layers of one, two and three parameters, recorded as norms and cosines alone."""
    monkeypatch.setattr(directions, "CHUNK", chunk)
    rng = np.random.default_rng(5)
    names = ("a.weight", "b.weight", "b.bias", "c.weight", "c.bias", "c.gain")
    steps, sizes = 14, (20, 30, 2, 9, 5, 1)
    drift = [rng.normal(size=size) for size in sizes]
    gradients = [[d + rng.normal(size=len(d)) for d in drift] for _ in range(steps)]
    for step in range(steps):
        gradients[step][2][:] = 0.0  # the bias of b has no direction
    norms, cosines = np.full((2, steps, len(names)), np.nan)
    states = np.zeros(norms.shape, np.uint8)
    states[6, 4] = State.NO_GRADIENT
    for column in range(len(names)):
        before = None
        for step in range(steps):
            now = gradients[step][column]
            if states[step, column] == State.NO_GRADIENT:
                now[:] = 0.0  # as seen from the whole layer
                continue
            norms[step, column] = np.linalg.norm(now)
            if before is not None and now.any():
                cosines[step, column] = cosine(now, before)
            before = now
    series = {"grad_norm": norms, "grad_cosine": cosines}
    run = make_run(series, names=names, states={"grad_norm": states})
    found = analyze_flow(run, temporal_window=5).layer_flows
    for layer, columns in {"a": [0], "b": [1, 2], "c": [3, 4, 5]}.items():
        whole = [np.concatenate([gradients[step][c] for c in columns]) for step in range(steps)]
        expected = [cosine(whole[step], whole[step - 1]) for step in range(steps - 5, steps)]
        assert found[layer].direction_consistency == pytest.approx(np.mean(expected), rel=1e-9)
    whole = [np.concatenate(gradients[step][3:]) for step in range(steps)]
    every = analyze_flow(run, temporal_window=50).layer_flows["c"].direction_consistency
    # Step 7 has the bias compared with step 5, as the recorder compared it.
    before = np.concatenate([gradients[6][3], gradients[5][4], gradients[6][5]])
    expected = [
        cosine(whole[step], before if step == 7 else whole[step - 1]) for step in range(1, steps)
    ]
    assert every == pytest.approx(np.mean(expected), rel=1e-9)


def test_cosines_of_steps_that_took_none_are_left_out() -> None:
    cosines = np.full((8, 1), np.nan)
    cosines[[3, 7], 0] = 0.5, 0.25
    run = make_run({"grad_norm": np.ones((8, 1)), "grad_cosine": cosines}, names=("a.weight",))
    assert analyze_flow(run).layer_flows["a"].direction_consistency == pytest.approx(0.375)
    none = {"grad_norm": np.ones((8, 1)), "grad_cosine": np.full((8, 1), np.nan)}
    run = make_run(none, names=("a.weight",))
    layer = analyze_flow(run).layer_flows["a"]
    assert layer.direction_consistency is None
    assert "fewer than two" in layer.missing["direction_consistency"]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_directions_behave_as_a_tuple() -> None:
    flow = analyze_flow({"a": noise(0, 12), "b": np.zeros(12)})
    found = flow.layer_flows["a"].gradient_directions
    listed = tuple(found)
    assert len(found) == len(listed) == 12
    assert found[-1] == listed[-1]
    assert found[2:5] == listed[2:5]
    assert found == listed
    written = flow.to_dict()["layer_flows"]["a"]["gradient_directions"]
    assert [item.to_dict() for item in listed] == written
    assert list(written[0]) == ["step", "magnitude", "consistency_score"]
    again = GradientFlow.from_json(flow.to_json())
    assert again == flow
    assert flow == again
