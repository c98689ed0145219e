"""Layers over time: magnitudes, directions, trends."""

import math

import numpy as np
import pytest
from tests.analysis.flow.runs import noise
from tests.making import make_run

from gradwatch.analysis.flow import FlowDirection, analyze_flow
from gradwatch.run import Run

# -- time and directions --------------------------------------------------------------------------

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


def test_directions_come_from_the_recorded_sketch() -> None:
    rng = np.random.default_rng(0)
    sketch = rng.normal(size=(6, 2, 32))
    run = make_run(
        {"grad_norm": np.ones((6, 2)), "grad_sketch": sketch}, names=("a.weight", "a.bias")
    )
    flow = analyze_flow(run).layer_flows["a"]
    merged = sketch.sum(axis=1)
    for i, found in enumerate(flow.gradient_directions):
        size = math.sqrt(math.fsum(float(v) ** 2 for v in merged[i]))
        expected = [float(v) / size for v in merged[i]]
        assert list(found.direction_vector) == pytest.approx(expected)
        if i:
            before = flow.gradient_directions[i - 1].direction_vector
            dot = math.fsum(a * b for a, b in zip(found.direction_vector, before, strict=True))
            assert found.direction_cosine == pytest.approx(dot)
    assert flow.gradient_directions[0].direction_cosine is None
    without = analyze_flow(Run.from_norms({"a": [1.0, 2.0]})).layer_flows["a"]
    assert without.gradient_directions[1].direction_vector is None
    assert without.gradient_directions[1].consistency_score == pytest.approx(1 - 1 / 3)
