"""Who moves with whom: silent on independent layers of every kind, right on planted relations."""

import itertools

import numpy as np
import pytest
from tests.analysis.gradients import loops

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.relations import (
    InteractionDirection,
    InteractionType,
    LayerInteraction,
    between_blocks,
    innovations,
    interactions,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.run import Run

RNG = np.random.default_rng


def related(logs: np.ndarray) -> list[LayerInteraction]:
    """What layers `0`, `1`, … with these ln norms [step, layer] say, without the neutral pairs."""
    steps, layers = logs.shape
    names = tuple(map(str, range(layers)))
    ones = np.ones(layers, np.int64)
    found = interactions(LayerSeries(names, np.arange(steps), np.exp(logs), ones, 0 * ones))
    return [item for item in found if item.interaction_type is not InteractionType.NEUTRAL]


def noise(kind: str, rng: np.random.Generator, steps: int, layers: int) -> np.ndarray:
    x = rng.normal(size=(steps + 50, layers))
    if kind == "random walks":
        x = np.cumsum(x, axis=0)
    if kind == "with memory":
        for i in range(1, len(x)):
            x[i] += 0.8 * x[i - 1]
    if kind == "heavy tails":
        x = rng.standard_t(3, size=x.shape)
    if kind == "falling together":
        x = x - np.arange(len(x))[:, None] / 10
    return 0.1 * x[50:]


KINDS = ["white", "random walks", "with memory", "heavy tails", "falling together"]


@pytest.mark.parametrize("kind", KINDS)
def test_independent_layers_do_not_interact(kind: str) -> None:
    rng = RNG(KINDS.index(kind))
    made = [200] * 20 + [6] * 180
    assert sum(bool(related(noise(kind, rng, 100, layers))) for layers in made) <= 10


def test_correlations_of_the_plain_changes_would_be_fooled() -> None:
    """The saboteur: differences of noise remember the sample before, and pairs are many."""
    changes = np.diff(noise("white", RNG(9), 100, 200), axis=0)
    strongest = np.abs(np.triu(np.corrcoef(changes.T), 1)).max()
    z = np.arctanh(strongest) * np.sqrt(96)
    assert z > 4.4  # "p < 0.01" for the twenty strongest pairs, though not for the 19,900 searched


PLANTED = ["lead by 1", "lead by 3", "lead by 5", "lead by -2", "common cause", "opposition"]


@pytest.mark.parametrize("layers", [2, 40])
@pytest.mark.parametrize("kind", ["white", "random walks"])
@pytest.mark.parametrize("plant", PLANTED)
def test_planted_relations_are_found_with_their_lag(plant: str, kind: str, layers: int) -> None:
    rng = RNG(11)
    first, second = (0, 1) if layers == 2 else (3, 30)
    lag = int(plant.split()[-1]) if plant.startswith("lead") else 0
    sign = -1.0 if plant == "opposition" else 1.0
    right = 0
    for _ in range(20):
        x = rng.normal(size=(120, layers))
        own = 0.4 * rng.normal(size=(120, 2))
        cause = rng.normal(size=120)
        x[:, first] = cause + (own[:, 0] if lag == 0 else 0)
        x[:, second] = sign * np.roll(cause, lag) + own[:, 1]
        x = 0.1 * (np.cumsum(x, axis=0) if kind == "random walks" else x)
        type_ = InteractionType.COMPETITIVE if sign < 0 else InteractionType.COOPERATIVE
        found = {(i.layer1, i.layer2): (i.interaction_type, i.lag) for i in related(x[10:-10])}
        right += found.get((str(first), str(second))) == (type_, lag)
    assert right >= 19


def test_spikes_that_follow_anothers_are_disruptive_and_those_together_are_not() -> None:
    def jumps(rows: tuple[int, ...], seed: int) -> np.ndarray:
        level = 0.01 * RNG(seed).normal(size=100)
        for row in rows:
            level[row:] += 3.4  # a change of level, so that only one step moves
        return level

    (found,) = related(np.stack([jumps((20, 45, 70), 1), jumps((21, 46, 71), 2)], axis=1))
    assert found.interaction_type is InteractionType.DISRUPTIVE
    together = related(np.stack([jumps((20, 45, 70), 1), jumps((20, 45, 70), 2)], axis=1))
    assert InteractionType.DISRUPTIVE not in {item.interaction_type for item in together}
    apart = related(np.stack([jumps((20, 45, 70), 1), jumps((21, 50, 80), 2)], axis=1))
    assert InteractionType.DISRUPTIVE not in {item.interaction_type for item in apart}


def test_strength_is_the_correlation_of_plain_loops() -> None:
    x = 0.1 * np.cumsum(RNG(3).normal(size=(90, 3)), axis=0)
    x[:, 1] += np.roll(x[:, 0], 2)
    ones = np.ones(3, np.int64)
    found = interactions(LayerSeries(("a", "b", "c"), np.arange(90), np.exp(x), ones, 0 * ones))
    fresh = [loops.innovations(column.tolist()) for column in x.T]
    for item in found:
        a, b = fresh["abc".index(item.layer1)], fresh["abc".index(item.layer2)]
        by_lag = {
            lag: loops.raw_correlation(
                a[max(-lag, 0) : 88 - max(lag, 0)], b[max(lag, 0) : 88 + min(lag, 0)]
            )
            for lag in range(-5, 6)
        }
        assert item.interaction_strength == pytest.approx(abs(by_lag[item.lag]), rel=1e-6)
        assert item.impact_score == pytest.approx(item.interaction_strength**2)
        assert item.common_steps == 88 - abs(item.lag)
        assert 0 <= item.confidence <= 1


def test_absent_samples_cost_evidence_not_truth() -> None:
    rng = RNG(4)
    cause = rng.normal(size=300)
    x = 0.1 * np.stack([cause, np.roll(cause, 1), rng.normal(size=300)], axis=1)
    x[rng.random(x.shape) < 0.1] = np.nan
    (found,) = related(x)
    assert (found.layer1, found.layer2, found.lag) == ("0", "1", 1)
    x[::3] = np.nan  # never three samples in a row: nothing can be foretold
    assert related(x) == []


def test_what_its_past_foretells_exactly_has_nothing_new() -> None:
    t = np.arange(100.0)
    curves = [t / 50, -t / 20, (t / 50) ** 2, 0 * t, np.sin(t / 9), -np.log1p(t), np.exp(-t / 9)]
    smooth = np.stack(curves, axis=1)
    assert np.isnan(innovations(smooth)).all()
    assert related(smooth) == []
    assert np.isnan(innovations(smooth[:5])).all()


def test_of_very_many_layers_only_neighbours_are_searched() -> None:
    x = noise("white", RNG(5), 60, 3000)
    x[:, 2501] = x[:, 2500] + 0.01 * RNG(6).normal(size=60)
    (found,) = related(x)
    assert (found.layer1, found.layer2) == ("2500", "2501")


# -- blocks ---------------------------------------------------------------------------------------


def test_independent_blocks_do_not_interact() -> None:
    rng = RNG(7)
    for blocks in (2, 12):
        for kind in KINDS:
            made = (noise(kind, rng, 100, blocks) for _ in range(60))
            said = sum(bool(between_blocks(tuple(map(str, range(blocks))), x)) for x in made)
            assert said <= 3


@pytest.mark.parametrize("lag", range(-5, 6))
def test_who_leads_between_blocks(lag: int) -> None:
    direction = (
        InteractionDirection.BIDIRECTIONAL,
        InteractionDirection.BOTTOM_UP,
        InteractionDirection.TOP_DOWN,
    )[int(np.sign(lag))]
    rng, right = RNG(8), 0
    for _ in range(20):
        cause = rng.normal(size=120)
        pair = np.stack([cause, np.roll(cause, lag) + 0.4 * rng.normal(size=120)], axis=1)
        found = between_blocks(("early", "late"), 0.1 * pair[10:-10])
        right += [(i.interaction_direction, i.lag) for i in found] == [(direction, lag)]
    assert right >= 19


def test_blocks_that_answer_each_other_are_bidirectional() -> None:
    rng, right = RNG(10), 0
    for _ in range(20):
        x = rng.normal(size=(300, 2))
        for i in range(3, len(x)):
            x[i, 1] += 0.6 * x[i - 2, 0]
            x[i, 0] += 0.6 * x[i - 3, 1]
        found = between_blocks(("early", "late"), 0.1 * x[100:])
        right += [i.interaction_direction for i in found] == [InteractionDirection.BIDIRECTIONAL]
    assert right >= 19


def test_blocks_of_a_run_are_named_and_their_layers_averaged() -> None:
    rng = RNG(12)
    moves = rng.normal(size=110)
    norms = {
        f"layers.{block}.{part}": np.exp(
            0.1 * np.cumsum(np.roll(moves, 2 * block) + 0.5 * rng.normal(size=110))[5:-5]
        )
        for block, part in itertools.product(range(2), ("attn", "mlp"))
    }
    hierarchy = analyze_gradients(Run.from_norms(norms)).gradient_hierarchy
    (found,) = hierarchy.cross_level_interactions
    assert (found.from_level, found.to_level) == ("layers.0", "layers.1")
    assert found.interaction_direction is InteractionDirection.BOTTOM_UP
    assert found.lag == 2
    assert found.confidence > 0.99
