"""Numbers and tests of series: against plain loops, on made noise, with gaps, in every shape."""

import itertools
import math

import numpy as np
import pytest
from tests.analysis import loops
from tests.analysis.gradients import loops as plain

from gradwatch.analysis import trends

RNG = np.random.default_rng


def pink(rng: np.random.Generator, length: int, series: int) -> np.ndarray:
    """1/f noise [step, series], cut out of a longer stretch: its ends need not meet."""
    frequencies = np.fft.rfftfreq(16 * length)
    frequencies[0] = np.inf
    shape = (len(frequencies), series)
    spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / np.sqrt(frequencies)[
        :, None
    ]
    return np.fft.irfft(spectrum, 16 * length, axis=0)[:length]


def called(values: np.ndarray) -> int:
    found = trends.trends(values)
    return int((found.rising | found.falling).sum())


# -- trend ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10, 50, 200])
def test_noise_has_no_trend_whether_white_or_with_long_memory(length: int) -> None:
    assert called(RNG(length).normal(size=(length, 1000))) <= 50
    assert called(pink(RNG(length), length, 1000)) <= 50


def test_a_test_that_knows_only_white_noise_would_fall_for_long_memory() -> None:
    noise = pink(RNG(1), 50, 300)
    tau = np.array([plain.kendall(x.tolist()) for x in noise.T])
    white = math.sqrt(2 * (2 * 50 + 5) / (9 * 50 * 49))  # Mann–Kendall
    assert (np.abs(tau) > 1.96 * white).mean() > 0.2
    assert called(noise) <= 15


def test_a_random_walk_is_called_a_trend_one_time_in_five() -> None:
    walks = np.cumsum(RNG(2).normal(size=(100, 1000)), axis=0)
    assert 100 <= called(walks) <= 260


@pytest.mark.parametrize(("length", "rise", "share"), [(10, 8, 0.7), (50, 4, 0.8), (200, 3, 0.95)])
def test_a_drift_well_above_the_noise_is_found(length: int, rise: float, share: float) -> None:
    ramp = np.linspace(0, rise, length)[:, None]
    noise = RNG(length).normal(size=(length, 500))
    assert trends.trends(ramp + noise).rising.mean() >= share
    assert trends.trends(noise - ramp).falling.mean() >= share


MONOTONE = {
    "line": np.linspace(1, 200, 100),
    "square": 10 ** (6 * (np.arange(50) / 50) ** 2),
    "decay": -np.exp(-np.arange(20) / 10),
    "five": np.array([1.0, 1.0, 1.0, 1.0, 2.0]),
    "stairs": np.repeat(np.arange(7.0), 30),
    "jump at the end": np.concatenate([np.zeros(999), np.ones(1)]),
    "gaps": np.where(np.arange(60) % 3 == 1, np.nan, np.arange(60.0) ** 3),
}


@pytest.mark.parametrize("shape", MONOTONE)
def test_what_never_turns_back_has_its_trend(shape: str) -> None:
    x = MONOTONE[shape]
    rise, fall = trends.trend(x), trends.trend(-x)
    assert rise is not None
    assert fall is not None
    assert rise.rising
    assert fall.falling
    assert rise.tau == pytest.approx(-fall.tau)


def test_one_reversal_among_few_samples_is_no_trend_and_no_change_is_none() -> None:
    assert trends.trend(np.array([1.0, 2.0, 3.0, 2.9, 5.0])) is None
    assert trends.trend(np.array([1.0, 2.0, 3.0, 4.0])) is None
    constant = trends.trend(np.ones(20))
    assert constant is not None
    assert (constant.tau, constant.p) == (0.0, 1.0)
    assert trends.trend(np.empty(0)) is None


def chance(x: list[float]) -> float:
    """The p-value by plain loops, Student's distribution integrated numerically."""
    n = len(x)
    ranks = [sum((v > w) - (v < w) for w in x) for v in x]
    power = [
        k * sum(r * math.cos(math.pi * k * (i + 0.5) / n) for i, r in enumerate(ranks)) ** 2
        for k in range(1, 8)
    ]
    t = math.sqrt(power[0] / (sum(power[1:]) / 6))
    grid = np.linspace(0, t, 20001)
    density = (1 + grid**2 / 6) ** -3.5
    constant = math.gamma(3.5) / (math.sqrt(6 * math.pi) * math.gamma(3))
    return 1 - 2 * constant * float(np.trapezoid(density, grid))


def test_tau_and_p_are_those_of_plain_loops_with_ties_and_gaps() -> None:
    values = np.round(RNG(3).normal(size=(40, 12)) + np.arange(40)[:, None] / 40, 1)
    values[RNG(4).random(values.shape) < 0.2] = np.nan
    values[5, 3] = np.inf
    found = trends.trends(values)
    for column, x in enumerate(values.T):
        samples = x[np.isfinite(x)].tolist()
        assert found.p[column] == pytest.approx(chance(samples), abs=1e-7)
        assert found.tau[column] == pytest.approx(tau_b(samples), abs=1e-12)


def tau_b(x: list[float]) -> float:
    pairs = [(x[j] > x[i]) - (x[j] < x[i]) for i in range(len(x)) for j in range(i + 1, len(x))]
    return sum(pairs) / math.sqrt(len(pairs) * sum(map(abs, pairs)))


def test_a_long_series_is_averaged_over_stretches_not_compared_pair_by_pair() -> None:
    noise = RNG(5).normal(size=50_000)
    flat, drifting = trends.trend(noise), trends.trend(noise + np.linspace(0, 0.5, 50_000))
    assert flat is not None
    assert drifting is not None
    assert not flat.rising
    assert not flat.falling
    assert drifting.rising


def test_trends_depend_on_neither_unit_nor_neighbours() -> None:
    values = RNG(6).normal(size=(30, 2100)) + np.linspace(0, 3, 30)[:, None]
    found = trends.trends(values)
    assert trends.trends(values * 1e300).p == pytest.approx(found.p, abs=1e-12)
    for column in (0, 1023, 1024, 2099):
        alone = trends.trend(values[:, column])
        assert alone is not None
        assert (alone.tau, alone.p) == pytest.approx((found.tau[column], found.p[column]))


# -- the other numbers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ragged() -> np.ndarray:
    values = RNG(7).normal(size=(60, 9)).cumsum(axis=0)
    values[RNG(8).random(values.shape) < 0.25] = np.nan
    values[:, 2] = RNG(9).normal(size=60)
    values[1:, 7], values[:, 8] = np.nan, np.nan  # one sample, none
    values[10:30, 4] = 1.5
    return values


def samples(x: np.ndarray) -> list[float]:
    return x[np.isfinite(x)].tolist()


def test_numbers_of_columns_with_gaps_are_those_of_plain_loops(ragged: np.ndarray) -> None:
    steps = 3 * np.arange(60) + 1000
    fits, changes, turned = (
        trends.lines(steps, ragged),
        trends.volatilities(ragged),
        trends.turns(ragged),
    )
    mean, std, skew, kurt = trends.moments(ragged)
    low, middle, high = trends.percentiles(ragged, (0.05, 0.5, 0.95))
    for column in range(7):
        x = samples(ragged[:, column])
        at = steps[np.isfinite(ragged[:, column])].tolist()
        assert fits.spread[column] == pytest.approx(plain.residual_spread(at, x), rel=1e-9)
        moves = [abs(b - a) for a, b in itertools.pairwise(x)]
        assert changes[column] == pytest.approx(loops.mean(moves), rel=1e-12)
        assert turned[column] == reversals(x)
        assert (mean[column], std[column], skew[column], kurt[column]) == pytest.approx(
            plain.moments(x), rel=1e-9, abs=1e-12
        )
        for share, found in ((0.05, low), (0.5, middle), (0.95, high)):
            assert found[column] == pytest.approx(loops.quantile(x, share), rel=1e-12)
    for table in (fits.slope, changes, trends.smoothnesses(ragged)):
        assert np.isnan(table[7:]).all()
    assert np.isnan([mean[8], std[8], middle[8]]).all()


def reversals(x: list[float]) -> int:
    moves = [b - a for a, b in itertools.pairwise(x) if b != a]
    return sum(a * b < 0 for a, b in itertools.pairwise(moves))


def test_lines_give_slope_error_and_intercept_of_the_normal_equations(ragged: np.ndarray) -> None:
    steps = np.arange(60) * 7 + 5
    fits = trends.lines(steps, ragged)
    for column in range(7):
        kept = np.isfinite(ragged[:, column])
        table = np.stack([np.ones(kept.sum()), steps[kept]], axis=1)
        (intercept, slope), squares, *_ = np.linalg.lstsq(table, ragged[kept, column])
        error = math.sqrt(squares[0] / (kept.sum() - 2) * np.linalg.inv(table.T @ table)[1, 1])
        assert fits.slope[column] == pytest.approx(slope, rel=1e-8)
        assert fits.intercept[column] == pytest.approx(intercept, rel=1e-7, abs=1e-9)
        assert fits.slope_error[column] == pytest.approx(error, rel=1e-8)


def test_smoothness_tells_a_curve_from_noise_from_a_zig_zag() -> None:
    t = np.arange(200)
    values = np.stack([np.sin(t / 30), RNG(10).normal(size=200), (-1.0) ** t, 2.0 * t], axis=1)
    curve, noise, zigzag, straight = trends.smoothnesses(values)
    assert curve > 0.99
    assert noise == pytest.approx(0.5, abs=0.1)
    assert zigzag < 0.01
    assert straight == 1.0


def test_oscillation_is_each_step_undoing_the_last_not_noise() -> None:
    noise = RNG(11).normal(size=(100, 1000))
    assert trends.oscillating(noise).sum() <= 50
    swinging = 3 * (-1.0) ** np.arange(100)[:, None] + noise
    assert trends.oscillating(swinging).mean() > 0.99
    assert not trends.oscillating(np.sin(np.arange(100) / 4)[:, None]).any()
    assert not trends.oscillates((-1.0) ** np.arange(7))  # too few to say


def test_moments_do_not_leave_the_range_and_rounding_is_no_shape() -> None:
    x = np.exp(RNG(12).normal(size=(50, 1)))
    mean, std, skew, kurt = (float(v[0]) for v in trends.moments(1e306 * x))
    assert (mean, std, skew, kurt) == pytest.approx(
        [m * s for m, s in zip(plain.moments(x[:, 0].tolist()), (1e306, 1e306, 1, 1), strict=True)]
    )
    _, _, skew, kurt = trends.moments(np.full((20, 1), 0.1))
    assert (skew[0], kurt[0]) == (0.0, 0.0)


def test_one_frequency_is_told_from_noise_with_and_without_memory() -> None:
    t = np.arange(200)
    for period in (3, 4, 17, 40):
        assert trends.periodic(np.sin(2 * np.pi * t / period) + 0.5 * RNG(13).normal(size=200))
    noise = np.concatenate([RNG(14).normal(size=(200, 300)), pink(RNG(15), 200, 300)], axis=1)
    assert sum(trends.periodic(x) for x in noise.T) <= 6
    assert not trends.periodic(np.ones(200))
    assert not trends.periodic(np.sin(t[:12]))  # too few to say


@pytest.mark.parametrize(
    ("freedom", "exact"), [(4, 2.7764), (6, 2.4469), (10, 2.2281), (30, 2.0423), (1e9, 1.95996)]
)
def test_student_s_quantile_is_that_of_the_tables(freedom: float, exact: float) -> None:
    assert trends.student_95(freedom) == pytest.approx(exact, rel=3e-3)
