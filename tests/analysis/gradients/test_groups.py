"""Distribution and groups of layers: each level is produced by a run made for it."""

import itertools
import math

import numpy as np
import pytest
from tests.analysis.gradients import loops
from tests.making import make_run

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.groups import (
    Difficulty,
    DistributionType,
    distribution,
    distribution_type,
    hierarchy,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.jsonio import dumps
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


def test_groups_are_those_of_plain_loops() -> None:
    run = grouped()
    hierarchy = analyze_gradients(run).gradient_hierarchy
    whole = {s.layer: run.series["grad_norm"][:, i] for i, s in enumerate(run.parameters)}
    norms = {name: x[-100:] for name, x in whole.items()}
    decades = {name: math.log10(float(np.median(x)) / 4) for name, x in norms.items()}
    squares = {name: float(x.mean()) ** 2 for name, x in whole.items()}
    total = math.fsum(squares.values())
    spread = loops.moments(list(decades.values()))[1] ** 2
    for group in hierarchy.layer_groups:
        mine, got = [norms[name] for name in group.layers], group.group_characteristics
        means = [float(x.mean()) for x in mine]
        assert got.average_gradient_norm == pytest.approx(math.fsum(means) / len(means))
        share = math.fsum(squares[name] for name in group.layers) / total
        assert got.importance == pytest.approx(share)
        if len(mine) > 1:
            inside = loops.moments([decades[name] for name in group.layers])[1] ** 2
            assert group.internal_coherence == pytest.approx(max(1 - inside / spread, 0))
            fresh = [loops.innovations(np.log(x).tolist()) for x in mine]
            fresh = [
                [v / math.sqrt(math.fsum(w * w for w in x) / len(x)) for v in x] for x in fresh
            ]
            pairs = [
                math.fsum(v * w for v, w in zip(a, b, strict=True)) / len(a)
                for a, b in itertools.combinations(fresh, 2)
            ]
            together = math.fsum(pairs) / len(pairs)
            assert got.gradient_synchronization == pytest.approx(together, abs=1e-9)
    by_level = {level.level_name: level for level in hierarchy.hierarchy_levels}
    strongest = max(g.group_characteristics.importance for g in hierarchy.layer_groups[:3])
    assert by_level["block"].optimization_impact == strongest


def test_members_that_move_together_are_synchronised() -> None:
    common, own = RNG(0).normal(size=150), RNG(1).normal(size=(4, 150))
    norms = {f"a.0.{i}": np.exp(0.1 * (common + 0.3 * own[i])) for i in range(2)}
    norms |= {f"a.1.{i}": np.exp(0.1 * own[i]) for i in (2, 3)}
    groups = analyze_gradients(Run.from_norms(norms)).gradient_hierarchy.layer_groups
    together, apart = (g.group_characteristics.gradient_synchronization for g in groups[:2])
    assert together > 0.8
    assert abs(apart) < 0.3


def test_no_number_of_any_group_is_infinite_or_nan() -> None:
    norms = {
        "b.0.huge": 1e306 * noise(1, 100),
        "b.0.dead": np.zeros(100),
        "b.1.never": np.full(100, np.nan),
        "b.2.late": np.concatenate([np.full(90, np.nan), noise(2, 10)]),
        "b.3.tiny": 1e-306 * noise(3, 100),
        "b.4.still": np.ones(100),
    }
    steps = {name: np.flatnonzero(np.isfinite(x)).tolist() for name, x in norms.items()}
    given = {name: x[np.isfinite(x)] for name, x in norms.items()}
    run = Run.from_norms(given, steps=steps)
    series = LayerSeries.of(run)
    results = [distribution(series, series.last(100)), hierarchy(run, series, series.last(100))]
    for result in results:
        assert "NaN" not in dumps(result)
        assert "Infinity" not in dumps(result)
    assert results[0].gradient_variance is None
    assert "beyond the largest" in results[0].missing["gradient_variance"]
    assert results[0].mean_gradient_norm > 1e304


# -- sensitivity to the learning rate --------------------------------------------------------------


def scheduled(rates: np.ndarray, elasticity: float, *, stats: tuple[str, ...] = ()) -> Run:
    """Two layers whose update ratio answers to the learning rate, and slows down by itself."""
    n = len(rates)
    drift = np.exp(-np.arange(n) / (2 * n))
    ratios = (1e-3 * drift * rates**elasticity)[:, None] * np.stack([noise(1, n), noise(2, n)], 1)
    table = {
        "grad_norm": np.stack([noise(3, n), noise(4, n)], axis=1),
        "update_ratio": ratios,
        "lr": rates[:, None],
    }
    subjects = [
        Subject(Kind.PARAMETER, f"b.{i}.weight", f"b.{i}", (4, 4), "float32", 16, group=0)
        for i in range(2)
    ]
    kept = {name: values for name, values in table.items() if name not in stats}
    return make_run(kept, subjects=[*subjects, Subject(Kind.GROUP, "group 0")])


STEPPED = np.repeat([1e-2, 1e-3, 3e-3, 1e-4], 50)


@pytest.mark.parametrize("elasticity", [1.0, 0.5, 0.0])
def test_sensitivity_to_the_rate_is_measured_from_how_it_moved(elasticity: float) -> None:
    groups = analyze_gradients(scheduled(STEPPED, elasticity)).gradient_hierarchy.layer_groups
    for group in groups[:2]:
        found = group.group_characteristics.learning_rate_sensitivity
        assert found == pytest.approx(elasticity, abs=0.05)


@pytest.mark.parametrize(
    ("rates", "without", "reason"),
    [
        (np.full(200, 1e-3), (), "did not move"),
        (1e-3 * np.exp(-np.arange(200) / 60), (), "at one pace"),
        (STEPPED, ("lr",), "learning rate was not recorded"),
        (STEPPED, ("update_ratio",), "updates were not recorded"),
    ],
)
def test_a_sensitivity_that_cannot_be_told_has_a_reason(
    rates: np.ndarray, without: tuple[str, ...], reason: str
) -> None:
    run = scheduled(rates, 1.0, stats=without)
    got = analyze_gradients(run).gradient_hierarchy.layer_groups[0].group_characteristics
    assert got.learning_rate_sensitivity is None
    assert reason in got.missing["learning_rate_sensitivity"]
