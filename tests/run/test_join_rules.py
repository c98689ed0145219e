"""The rule of each statistic against the whole measured at once, in plain float64."""

import weakref

import numpy as np
import pytest

from gradwatch.run.join_rules import RULES
from gradwatch.stats import Family, Kind, Stat, family_stats

STEPS, SUBJECTS, PARTS = 4, 3, 5


class Given:
    """Parts that lie in memory; a statistic nobody gave is absent everywhere."""

    def __init__(self, tables, sizes=(), cut_rows=(False,) * SUBJECTS) -> None:
        self._tables, self._sizes, self.cut_rows = tables, sizes, np.array(cut_rows)

    def of(self, stat):
        absent = np.full((STEPS, SUBJECTS), np.nan)
        return iter(self._tables.get(stat, [absent] * PARTS))

    def sizes(self):
        return iter(self._sizes)


def measured(data: np.ndarray) -> dict[str, float]:
    """Every statistic of a tensor, or of none (then it is NaN)."""
    finite = data[np.isfinite(data)]
    out = {"count": len(data), "nan": np.isnan(data).sum(), "inf": np.isinf(data).sum()}
    out["nonfinite"] = out["nan"] + out["inf"]
    out["zero_fraction"] = (data == 0).mean()
    if len(finite):
        mean, std = finite.mean(), finite.std()
        out |= {"mean": mean, "std": std, "norm": np.sqrt((finite**2).sum())}
        out |= {"abs_mean": abs(finite).mean(), "abs_max": abs(finite).max()}
        out |= {"min": finite.min(), "max": finite.max()}
        if std > 0:
            away = (finite - mean) / std
            out |= {"skewness": (away**3).mean(), "kurtosis": (away**4).mean() - 3}
    return {name: float(value) for name, value in out.items()}


def pieces(rng: np.random.Generator) -> list[list[list[np.ndarray]]]:
    """[part][step][subject]: data of very different sizes, some not finite, some parts absent."""
    out = []
    for _ in range(PARTS):
        rows = []
        for step in range(STEPS):
            row = [rng.normal(1, 2, rng.integers(1, 9)) * 10.0 ** (3 * step) for _ in range(3)]
            row[0][rng.random(len(row[0])) < 0.2] = 0
            row[1][rng.random(len(row[1])) < 0.2] = rng.choice([np.nan, np.inf])
            row[2] = row[2][:0] if rng.random() < 0.3 else row[2]
            rows.append(row)
        out.append(rows)
    return out


def table(rows: list[list[np.ndarray]], name: str) -> np.ndarray:
    """One statistic of every tensor; absent where it is empty."""
    found = [
        [measured(data).get(name, np.nan) if len(data) else np.nan for data in r] for r in rows
    ]
    return np.array(found)


@pytest.mark.parametrize("family", [Family.GRAD, Family.WEIGHT, Family.ACT])
def test_parts_join_to_what_the_whole_is(family):
    rng = np.random.default_rng(5)
    checked = 0
    for _ in range(5):
        parts = pieces(rng)
        names = measured(np.array([1.0, 2.0]))
        stats = {stat: str(stat).removeprefix(f"{family}_") for stat in family_stats(family)}
        stats = {stat: name for stat, name in stats.items() if name in names}
        given = Given({s: [table(rows, name) for rows in parts] for s, name in stats.items()})
        whole = [[np.concatenate([p[i][j] for p in parts]) for j in range(3)] for i in range(STEPS)]
        for stat, name in stats.items():
            joined, expected = RULES[stat](given, stat), table(whole, name)
            assert joined == pytest.approx(expected, rel=1e-9, nan_ok=True), stat
            checked += int(np.isfinite(joined).sum())
    assert checked > 5 * len(stats) * 6


def test_weights_of_parts_that_count_nothing_are_their_sizes():
    rng = np.random.default_rng(6)
    parts = rng.random((PARTS, STEPS, SUBJECTS))
    parts[2, 1] = np.nan
    sizes = rng.integers(1, 50, (PARTS, SUBJECTS)).astype(float)
    sizes[4, 2] = np.nan
    weights = np.where(np.isnan(parts + sizes[:, None]), 0, np.nan_to_num(sizes)[:, None])
    for stat, power in ((Stat.UPDATE_LOST_FRACTION, 1), (Stat.OPTIM_RATIO_RMS, 2)):
        joined = RULES[stat](Given({stat: list(parts)}, list(sizes)), stat)
        expected = np.average(np.nan_to_num(parts) ** power, axis=0, weights=weights)
        assert joined == pytest.approx(expected ** (1 / power), rel=1e-12)


def test_the_ratio_is_of_the_whole_update_to_the_whole_weight():
    rng = np.random.default_rng(7)
    updates, weights = rng.random((2, PARTS, STEPS, SUBJECTS)) + 0.1
    updates[:, 1] = 0  # nothing moved on step 1 …
    ratios = updates / weights
    ratios[3, 1:3] = updates[3, 1:3] = np.nan  # … and one part is absent on steps 1 and 2
    ratios[:, 3], updates[:, 3] = np.nan, np.nan
    tables = {Stat.UPDATE_NORM: list(updates), Stat.UPDATE_RATIO: list(ratios)}
    joined = RULES[Stat.UPDATE_RATIO](Given(tables), Stat.UPDATE_RATIO)
    weights[3, 2] = np.nan
    squares = np.nansum(updates**2, axis=0) / np.nansum(weights**2, axis=0)
    assert joined[0] == pytest.approx(np.sqrt(squares[0]), rel=1e-12)
    assert joined[1].tolist() == [0, 0, 0]
    assert joined[2] == pytest.approx(np.sqrt(squares[2]), rel=1e-12)
    assert np.isnan(joined[3]).all()


def test_rows_add_up_unless_ranks_cut_them():
    counts = [np.full((STEPS, SUBJECTS), count) for count in (3.0, 1.0, np.nan, 2.0)]
    given = Given({Stat.GRAD_ZERO_ROWS: counts}, cut_rows=(False, True, False))
    assert RULES[Stat.GRAD_ZERO_ROWS](given, Stat.GRAD_ZERO_ROWS)[0].tolist() == [6, 1, 6]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def cosines(gradients: list[np.ndarray | None]) -> tuple[list[float], list[float]]:
    """Norms and cosines with the gradient before, as a recorder has them of one shard."""
    norms, found, before = [], [], None
    for now in gradients:
        norms.append(np.nan if now is None else float(np.linalg.norm(now)))
        known = now is not None and before is not None and now.any() and before.any()
        found.append(cosine(now, before) if known else np.nan)
        before = before if now is None else now
    return norms, found


@pytest.mark.parametrize("scale", [1.0, 1e180, 1e-180])
def test_the_cosine_is_that_of_the_whole_vectors(scale: float):
    rng = np.random.default_rng(8)
    # Shards of very different sizes and lengths: [step][shard] of each subject.
    sizes = [3, 40, 7, 1, 12]
    whole = rng.normal(size=(SUBJECTS, STEPS, sum(sizes)))
    whole[0, 3] = whole[0, 2] * 3 + rng.normal(size=sum(sizes)) / 10
    cuts = np.cumsum(sizes)[:-1]
    whole[1, 2, cuts[0] : cuts[1]] = 0.0  # the second shard has no direction on step 2 and after
    whole[2, :, cuts[3] :] = 0.0  # the last one never
    missing = {(0, 1), (2, 0)}  # subject and step that were not measured
    norms, found = np.full((2, PARTS, STEPS, SUBJECTS), np.nan)
    for subject in range(SUBJECTS):
        gradients = [
            [None if (subject, step) in missing else shard for shard in np.split(vector, cuts)]
            for step, vector in enumerate(whole[subject])
        ]
        for part in range(PARTS):
            norms[part, :, subject], found[part, :, subject] = cosines([g[part] for g in gradients])
    tables = {Stat.GRAD_NORM: list(norms * scale), Stat.GRAD_COSINE: list(found)}
    joined = RULES[Stat.GRAD_COSINE](Given(tables), Stat.GRAD_COSINE)
    for subject in range(SUBJECTS):
        measured = [step for step in range(STEPS) if (subject, step) not in missing]
        for step in range(STEPS):
            earlier = [other for other in measured if other < step]
            if step not in measured or not earlier:
                assert np.isnan(joined[step, subject])
                continue
            now, before = whole[subject, step], whole[subject, earlier[-1]]
            assert joined[step, subject] == pytest.approx(cosine(now, before), rel=1e-9)
    assert joined[3, 0] > 0.9


def test_a_shard_without_a_cosine_adds_nothing():
    tables = {
        Stat.GRAD_NORM: [np.array([[1.0], [2.0]]), np.array([[np.nan], [np.nan]])],
        Stat.GRAD_COSINE: [np.array([[np.nan], [0.5]]), np.array([[np.nan], [np.nan]])],
    }
    joined = RULES[Stat.GRAD_COSINE](Given(tables), Stat.GRAD_COSINE)
    assert np.isnan(joined[0, 0])
    assert joined[1, 0] == pytest.approx(0.5)
    tables[Stat.GRAD_COSINE][0][1] = np.nan  # no cosine was taken on this step
    assert np.isnan(RULES[Stat.GRAD_COSINE](Given(tables), Stat.GRAD_COSINE)).all()


def test_norms_near_the_ends_of_the_range_neither_overflow_nor_vanish():
    parts = [np.full((STEPS, SUBJECTS), value) for value in (3e200, 4e200)]
    assert RULES[Stat.GRAD_NORM](Given({Stat.GRAD_NORM: parts}), Stat.GRAD_NORM) == pytest.approx(
        np.full((STEPS, SUBJECTS), 5e200)
    )
    parts = [part / 1e200 / 1e200 for part in parts]
    assert (RULES[Stat.GRAD_NORM](Given({Stat.GRAD_NORM: parts}), Stat.GRAD_NORM) > 0).all()


@pytest.mark.parametrize(
    "stat", [Stat.GRAD_COSINE, Stat.GRAD_NORM, Stat.GRAD_STD, Stat.GRAD_ABS_MAX]
)
def test_parts_are_let_go(stat):
    made: list[weakref.ref] = []
    most = 0

    class Fleeting(Given):
        def of(self, stat):
            nonlocal most
            for _ in range(50):
                part = np.ones((STEPS, SUBJECTS))
                made.append(weakref.ref(part))
                most = max(most, sum(ref() is not None for ref in made))
                yield part
                del part

    RULES[stat](Fleeting({}), stat)
    assert most <= 2 * len(family_stats(Family.GRAD))


def test_everything_of_parameters_and_layers_has_a_rule():
    assert {stat for stat in Stat if stat.kind is not Kind.GROUP} == set(RULES)
