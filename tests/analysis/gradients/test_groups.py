"""Distribution, interactions and groups of layers: each level is produced by a run made for it."""

import math

import numpy as np
import pytest
from tests.analysis.gradients import loops
from tests.making import make_run

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.groups import (
    Difficulty,
    DistributionType,
    InteractionDirection,
    InteractionType,
    distribution_type,
)
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind

RNG = np.random.default_rng


def noise(seed: int, size: int = 200, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * RNG(seed).normal(size=size))


def network(norms: dict, **scalars):
    return analyze_gradients(Run.from_norms(norms, scalars=scalars)).network_level_analysis


# -- distribution ---------------------------------------------------------------------------------

DISTRIBUTIONS = {
    DistributionType.NORMAL: 10 ** RNG(1).normal(size=60),
    DistributionType.SKEWED: 10 ** RNG(2).exponential(size=60),
    DistributionType.HEAVY_TAILED: 10
    ** np.concatenate([RNG(3).normal(size=60) * 0.2, [2.0, -2.0, 2.2, -2.2]]),
    DistributionType.MULTIMODAL: 10
    ** np.concatenate([RNG(4).normal(size=30) * 0.1, 4 + RNG(5).normal(size=30) * 0.1]),
    DistributionType.DEGENERATE: np.array([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("type_", DistributionType)
def test_every_type_of_distribution(type_: DistributionType) -> None:
    assert distribution_type(DISTRIBUTIONS[type_]) is type_


def test_few_or_uniform_layers_are_not_multimodal() -> None:
    assert distribution_type(np.array([1.0, 10.0])) is DistributionType.DEGENERATE
    wrong = sum(
        distribution_type(10 ** RNG(seed).uniform(size=12)) is DistributionType.MULTIMODAL
        for seed in range(100)
    )
    assert wrong <= 5


def test_moments_over_layers_are_those_of_plain_loops() -> None:
    norms = {f"l{i}": noise(i) * (i + 1) for i in range(9)}
    got = network(norms).gradient_distribution
    means = [math.fsum(x.tolist()) / len(x) for x in norms.values()]
    mean, std, skew, kurt = loops.moments(means)
    assert got.mean_gradient_norm == pytest.approx(mean, rel=1e-12)
    assert got.gradient_variance == pytest.approx(std**2, rel=1e-12)
    assert got.gradient_skewness == pytest.approx(skew, abs=1e-10)
    assert got.gradient_kurtosis == pytest.approx(kurt, abs=1e-10)
    assert got.layer_gradient_ratios["l3"] == pytest.approx(means[3] / mean, rel=1e-12)


# -- interactions ---------------------------------------------------------------------------------


def test_layers_that_move_together_cooperate_and_strength_is_the_correlation() -> None:
    common = RNG(0).normal(size=100)
    a = np.exp(np.cumsum(0.1 * common + 0.02 * RNG(1).normal(size=100)))
    b = np.exp(np.cumsum(0.1 * common + 0.02 * RNG(2).normal(size=100)))
    (found,) = network({"a": a, "b": b}).layer_interactions
    assert found.interaction_type is InteractionType.COOPERATIVE
    changes = [np.diff(np.log(x)).tolist() for x in (a, b)]
    assert found.interaction_strength == pytest.approx(loops.correlation(*changes), rel=1e-9)


def test_opposed_layers_compete_and_unrelated_ones_are_neutral() -> None:
    common = RNG(0).normal(size=100)
    a, b = np.exp(np.cumsum(0.1 * common)), np.exp(-np.cumsum(0.1 * common))
    (found,) = network({"a": a, "b": b}).layer_interactions
    assert found.interaction_type is InteractionType.COMPETITIVE
    (found,) = network({"a": noise(1), "b": noise(2)}).layer_interactions
    assert found.interaction_type is InteractionType.NEUTRAL


def test_spikes_that_follow_anothers_are_disruptive() -> None:
    a, b = noise(1, 100, 0.01), noise(2, 100, 0.01)
    for at in (20, 45, 70):
        a[at] *= 30
        a[at + 1 :] *= 30  # a level change, so that only one step moves
        b[at + 1 :] *= 30
    (found,) = network({"a": a, "b": b}).layer_interactions
    assert found.interaction_type is InteractionType.DISRUPTIVE


# -- groups ---------------------------------------------------------------------------------------


def grouped() -> Run:
    names = [f"layers.{b}.{part}.weight" for b in range(3) for part in ("attn", "mlp")]
    decades = (0.0, 0.2, -1.0, -1.2, -4.5, -4.0)
    table = np.stack([10**d * noise(i) for i, d in enumerate(decades)], axis=1)
    subjects = [
        Subject(Kind.PARAMETER, n, n.rpartition(".")[0], (4, 4), "float32", 16, module="Linear")
        for n in names
    ]
    return make_run({"grad_norm": table}, subjects=subjects)


def test_groups_are_blocks_kinds_and_levels() -> None:
    found = analyze_gradients(grouped()).gradient_hierarchy
    groups = {group.group_name: group for group in found.layer_groups}
    assert groups["block layers.1"].layers == ("layers.1.attn", "layers.1.mlp")
    assert len(groups["kind Linear"].layers) == 6
    assert groups["gradient level high"].layers == ("layers.0.attn", "layers.0.mlp")
    assert groups["gradient level low"].layers == ("layers.2.attn", "layers.2.mlp")
    shares = [groups[f"block layers.{i}"].group_characteristics.importance for i in range(3)]
    assert sum(shares) == pytest.approx(1.0)
    levels = {level.level_name: level for level in found.hierarchy_levels}
    assert levels["block"].level_importance > 0.9
    assert levels["kind"].level_importance == pytest.approx(0.0)


def test_every_difficulty() -> None:
    decades = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, -2.5, -5.0]
    norms = {f"b.{i}": 10.0**d * noise(i) for i, d in enumerate(decades)}
    groups = analyze_gradients(Run.from_norms(norms)).gradient_hierarchy.layer_groups
    found = {g.group_characteristics.optimization_difficulty for g in groups}
    assert found >= set(Difficulty)


@pytest.mark.parametrize(
    ("lag", "direction"),
    [
        (0, InteractionDirection.BIDIRECTIONAL),
        (1, InteractionDirection.BOTTOM_UP),
        (-1, InteractionDirection.TOP_DOWN),
    ],
)
def test_who_leads_between_blocks(lag: int, direction: InteractionDirection) -> None:
    moves = 0.1 * RNG(0).normal(size=102)
    first, second = moves[1:-1], np.roll(moves, lag)[1:-1]
    run = Run.from_norms({"b.0": np.exp(np.cumsum(first)), "b.1": np.exp(np.cumsum(second))})
    (found,) = analyze_gradients(run).gradient_hierarchy.cross_level_interactions
    assert found.direction is direction
    assert found.interaction_strength > 0.9
