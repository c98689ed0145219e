"""Several ranks as one run, against the whole tensors in plain numpy."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.store.trial import WAIT, Trial, finishing_at

from gradwatch.kernel import batch_of, hashes
from gradwatch.run import Histogram, Placement, Subject
from gradwatch.run.subject import HistogramTable
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State, row_dtype
from gradwatch.store import Writer, open_run

SHAPE = (12, 5)
CUTS = [(0, 5), (5, 9), (9, 12)]
MEASURED = np.zeros(1, np.uint8)


def naive(data: np.ndarray) -> dict[str, float]:
    """The statistics of a tensor, each by its definition."""
    data = data.astype(float)
    finite = data[np.isfinite(data)]
    mean, std = finite.mean(), finite.std()
    away = (finite - mean) / std if std > 0 else np.full(len(finite), np.nan)
    return {
        "count": data.size,
        "norm": np.sqrt((finite**2).sum()),
        "mean": mean,
        "std": std,
        "skewness": (away**3).mean(),
        "kurtosis": (away**4).mean() - 3,
        "abs_mean": abs(finite).mean(),
        "abs_max": abs(finite).max(),
        "min": finite.min(),
        "max": finite.max(),
        "nan": np.isnan(data).sum(),
        "inf": np.isinf(data).sum(),
        "zero_fraction": (data == 0).mean(),
        "zero_rows": (data == 0).all(axis=1).sum(),
    }


def row_of(part: np.ndarray) -> np.ndarray:
    row = np.zeros(1, row_dtype(Family.GRAD))
    for name, value in naive(part).items():
        row[f"grad_{name}"] = value
    return row


def hash_of(part: np.ndarray, offset: int) -> np.uint64:
    batch, keep = batch_of([part])
    found = hashes(batch, np.array([offset], np.int64))[0]
    assert keep  # the memory lives until here
    return found


def write_shards(path: Path, tensors: list[np.ndarray], absent=(), only=(0, 1, 2)) -> None:
    """One tensor cut into three; some ranks miss some steps."""
    for rank, (begin, end) in enumerate(CUTS):
        if rank not in only:
            continue
        writer = Writer.create(path, name="shards", rank=rank, world=len(CUTS))
        place = Placement(SHAPE, (begin, 0), (end - begin, SHAPE[1]))
        count = (end - begin) * SHAPE[1]
        subject = Subject(
            Kind.PARAMETER, "w", "", (end - begin, SHAPE[1]), "float32", count, placement=place
        )
        ids = writer.declare([subject])
        for step, tensor in enumerate(tensors):
            if (rank, step) in absent:
                continue
            part = np.ascontiguousarray(tensor[begin:end])
            writer.put(Family.GRAD, step, ids, row_of(part), MEASURED)
            weights = np.zeros(1, row_dtype(Family.WEIGHT))
            weights["weight_hash"] = hash_of(part, begin * SHAPE[1])
            weights["weight_count"] = count
            writer.put(Family.WEIGHT, step, ids, weights, MEASURED)
            bins = np.array([rank + 1], np.uint64)
            table = HistogramTable.of([Histogram(rank - 1, bins, bins, 1)])
            writer.histogram_table(Family.GRAD, step, ids, table)
            writer.scalars(step, {"loss": 10.0 * rank + step})
        assert writer.close(WAIT)


@pytest.fixture
def tensors() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    made = [rng.normal(size=SHAPE).astype(np.float32) * 10.0**power for power in (-3, 0, 4, 0)]
    made[1][2, 3], made[1][10, 0] = np.nan, np.inf
    made[2][:] = 7.5
    made[3][6:8] = 0
    return [tensor.astype(np.float32) for tensor in made]


def test_shards_are_the_whole(tmp_path: Path, tensors: list[np.ndarray]) -> None:
    write_shards(tmp_path / "run", tensors)
    run = open_run(tmp_path / "run")
    assert run.info["ranks"] == 3
    assert run.info["complete"]
    assert (run.subjects[0].shape, run.subjects[0].count) == (SHAPE, 60)
    assert run.subjects[0].placement is None
    assert run.ranks[1].subjects[0].placement == Placement(SHAPE, (5, 0), (4, 5))
    for step, tensor in enumerate(tensors):
        for name, true in naive(tensor).items():
            got = run.series[f"grad_{name}"][step, 0]
            assert got == pytest.approx(true, rel=1e-5, abs=1e-6, nan_ok=True), (name, step)
        assert run.integers("weight_hash")[step, 0] == hash_of(tensor, 0)
        assert run.integers("weight_count")[step, 0] == 60
    assert (run.state("grad_norm") == State.MEASURED).all()
    histogram = run.histograms("grad", "w")[0]
    assert histogram.first_exponent == -1
    assert histogram.positive.tolist() == [1, 2, 3]
    assert histogram.count == 15
    assert run.scalars["loss"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert run.ranks[2].scalars["loss"].tolist() == [20.0, 21.0, 22.0, 23.0]


def test_a_missing_shard_makes_the_step_partial(tmp_path: Path, tensors: list[np.ndarray]) -> None:
    write_shards(tmp_path / "run", tensors, absent={(1, 2)})
    run = open_run(tmp_path / "run")
    partial = [State.MEASURED, State.MEASURED, State.PARTIAL, State.MEASURED]
    assert run.state("grad_norm")[:, 0].tolist() == partial
    assert run.series["grad_count"][:, 0].tolist() == [60, 60, 40, 60]
    assert list(run.histograms("grad", "w")) == [0, 1, 3]


@pytest.mark.parametrize("silent", [True, False])
def test_a_rank_that_is_missing_or_died_early(
    tmp_path: Path, tensors: list[np.ndarray], silent: bool
) -> None:
    late = {(2, step) for step in range(0 if silent else 2, 4)}
    write_shards(tmp_path / "run", tensors, absent=late)
    states = open_run(tmp_path / "run").state("grad_norm")[:, 0].tolist()
    assert states == [State.PARTIAL if (2, step) in late else 0 for step in range(4)]
    write_shards(tmp_path / "two", tensors, only=(0, 2))  # its folder was not copied
    run = open_run(tmp_path / "two")
    assert (run.state("grad_norm") == State.PARTIAL).all()
    assert list(run.histograms("grad", "w")) in ([], [0, 1, 2, 3])


def test_copies_count_once_and_layers_are_merged(tmp_path: Path) -> None:
    for rank in range(2):
        writer = Writer.create(tmp_path / "run", name="copies", rank=rank, world=2)
        parameter = Subject(Kind.PARAMETER, "w", "", (2,), "float32", 2)
        ids = writer.declare([parameter, Subject(Kind.LAYER, "net", "net")])
        for step in range(3):
            if rank == 0 and step == 1:
                continue  # it died before, or was not asked: its copy is not filled in
            row = np.zeros(1, row_dtype(Family.GRAD))
            row["grad_norm"], row["grad_count"] = 5.0 + rank, 2
            act = np.zeros(1, row_dtype(Family.ACT))
            act["act_count"], act["act_mean"], act["act_std"] = 10, rank * 2.0, 0.0
            act["act_abs_max"], act["act_nonfinite"] = 3.0 + rank, rank
            writer.put(Family.GRAD, step, ids[:1], row, MEASURED)
            writer.put(Family.ACT, step, ids[1:], act, MEASURED)
            writer.scalars(step, {"loss": float(rank)})
        assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.series["grad_norm"][[0, 2], 0].tolist() == [5.0, 5.0]
    assert run.state("grad_norm")[:, 0].tolist() == [0, State.NOT_SAMPLED, 0]
    assert run.series["act_count"][:, 0].tolist() == [20, 10, 20]
    assert run.series["act_nonfinite"][:, 0].tolist() == [1, 1, 1]
    assert run.series["act_abs_max"][0, 0] == 4.0
    assert run.series["act_mean"][0, 0] == pytest.approx((10 * 0 + 9 * 2) / 19)
    assert run.state("act_mean")[:, 0].tolist() == [0, State.PARTIAL, 0]
    assert run.scalars["loss"].tolist() == [0.0, 1.0, 0.0]
    assert run.info["complete"]


def test_a_rank_that_did_not_come_back_is_not_mixed_in(
    tmp_path: Path, tensors: list[np.ndarray]
) -> None:
    write_shards(tmp_path / "run", tensors)
    writer = Writer.create(tmp_path / "run", name="again", rank=0, world=3)
    place = Placement(SHAPE, (0, 0), (5, 5))
    ids = writer.declare([Subject(Kind.PARAMETER, "w", "", (5, 5), "float32", 25, placement=place)])
    writer.put(Family.GRAD, 1, ids, row_of(tensors[0][:5]), MEASURED)
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.series[Stat.GRAD_COUNT][:, 0].tolist() == [60, 25]  # the old steps 2 and 3 are gone
    assert run.state(Stat.GRAD_COUNT)[1, 0] == State.PARTIAL
    assert len(open_run(tmp_path / "run", attempt=0).steps) == 4


def test_resumed_ranks(tmp_path: Path) -> None:
    """All of them resumed at step 60; one had come further before."""
    trials = {}
    for rank, attempt, steps in ((0, 0, 100), (1, 0, 80), (0, 1, 90), (1, 1, 90)):
        trial = Trial(tmp_path / "run", rank=rank, world=2, seed=10 * attempt + rank)
        trials[rank, attempt] = trial.steps(range(60 * attempt, steps))
        trial.close()
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(90))
    assert run.info["attempts"] == [0, 1]
    for rank, part in run.ranks.items():
        trials[rank, 1].check(part)
        old = trials[rank, 0]
        old.truth = {key: truth for key, truth in old.truth.items() if key[1] < 60}
        old.loss = {step: loss for step, loss in old.loss.items() if step < 60}
        old.check(part)
    trials[0, 1].check(run)  # copies: the lowest rank counts


def test_several_folders_open_as_one(tmp_path: Path, tensors: list[np.ndarray]) -> None:
    write_shards(tmp_path / "run", tensors)
    (tmp_path / "other").mkdir()
    (folder,) = (tmp_path / "run").glob("0002-*")
    folder.rename(tmp_path / "other" / folder.name)
    whole = open_run([tmp_path / "run", tmp_path / "other"])
    assert (whole.state("grad_norm") == State.MEASURED).all()
    assert whole.info["name"] == "shards"
    assert (open_run(tmp_path / "run").state("grad_norm") == State.PARTIAL).all()


def test_a_damaged_rank_leaves_the_others(tmp_path: Path) -> None:
    with finishing_at(10_000):
        for rank in range(2):
            trial = Trial(tmp_path / "run", rank=rank, world=2, seed=rank, families=(Family.GRAD,))
            trial.steps(range(100), 20).close()
    lost = sorted((tmp_path / "run").glob("0001-*/rows/grad/*"))[1]
    lost.unlink()
    run = open_run(tmp_path / "run")
    assert not run.info["complete"]
    (event,) = [event for event in run.events if event.kind == "damage"]
    assert event.rank == 1
    assert run.ranks[0].info["complete"]
    assert (run.state("grad_norm") != State.NOT_SAMPLED).all()  # rank 0 has the copy that counts


# -- who counts, against a walk over single cells --------------------------------------------------


class Rank(NamedTuple):
    """What one rank recorded."""

    rank: int
    steps: list[int]
    subjects: list[Subject]
    tables: dict[Stat, tuple[np.ndarray, np.ndarray]]

    def write(self, path: Path) -> None:
        writer = Writer.create(path, name="many", rank=self.rank, world=9)
        ids = writer.declare(self.subjects)
        for at, step in enumerate(self.steps):
            writer.scalars(step, {"loss": 1.0})
            for stat, (values, states) in self.tables.items():
                own = ids[[subject.kind is stat.kind for subject in self.subjects]]
                rows = np.zeros(len(own), row_dtype(stat.family))
                rows[stat] = values[at]
                writer.put(stat.family, step, own, rows, states[at])
        assert writer.close(WAIT)


COUNTS = {Kind.PARAMETER: Stat.GRAD_COUNT, Kind.LAYER: Stat.ACT_COUNT}
STATES = [State.MEASURED] * 12 + list(State)


def some_ranks(rng: np.random.Generator) -> list[Rank]:
    """Shards, replicas, parameters without a placement, layers; some absent."""
    steps = np.sort(rng.choice(30, rng.integers(1, 6), replace=False))
    shards = rng.integers(0, 4, 3)
    ranks = []
    for rank in range(rng.integers(2, 9)):
        subjects = [Subject(Kind.LAYER, "layer")]
        for number in rng.permutation(3):
            place = None
            if shards[number]:
                own = rank % shards[number]
                place = Placement((2 * shards[number], 5), (2 * own, 0), (2, 5), rank)
            if rng.random() < 0.85:
                subjects.append(Subject(Kind.PARAMETER, f"w{number}", placement=place))
        own_steps = steps[rng.random(len(steps)) < 0.8]
        tables = {}
        for kind, stat in COUNTS.items():
            width = sum(subject.kind is kind for subject in subjects)
            states = rng.choice(STATES, (len(own_steps), width)).astype(np.uint8)
            if rng.random() < 0.9:
                tables[stat] = rng.integers(1, 1000, states.shape), states
        ranks.append(Rank(rank, own_steps.tolist(), subjects, tables))
    return ranks


def cell(ranks: list[Rank], kind: Kind, name: str, step: int) -> tuple[float, int]:
    """Count and state of one subject on one step, by the words of docs/format.md."""
    shards, found = {}, []
    for rank in ranks:
        columns = [subject for subject in rank.subjects if subject.kind is kind]
        for column, subject in enumerate(columns):
            place = subject.placement
            key = rank.rank if kind is Kind.LAYER else place and (place.offset, place.shape)
            if subject.name != name or key in shards:
                continue
            shards[key] = subject
            state, value = State.NOT_SAMPLED, np.nan
            if step in rank.steps and COUNTS[kind] in rank.tables:
                values, states = (
                    table[rank.steps.index(step)] for table in rank.tables[COUNTS[kind]]
                )
                state, value = states[column], values[column]
            found.append((value, state))
    valued = [(value, state) for value, state in found if HAS_VALUE[state]]
    if not valued:
        known = [state for _, state in found if state != State.NOT_SAMPLED]
        return np.nan, known[0] if known else State.NOT_SAMPLED
    places = [subject.placement for subject in shards.values()]
    whole = not all(places) or 10 * len(places) == np.prod(places[0].global_shape)
    total = sum(value for value, _ in valued)
    complete = whole and len(valued) == len(shards)
    return total, max(state for _, state in valued) if complete else State.PARTIAL


def test_every_cell_counts_every_shard_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    seen = set()
    for number in range(25):
        ranks = some_ranks(rng)
        for rank in ranks:
            rank.write(tmp_path / f"{number}")
        run = open_run(tmp_path / f"{number}")
        assert run.steps.tolist() == sorted({step for rank in ranks for step in rank.steps})
        for kind, stat in COUNTS.items():
            values, states, exact = run.series[stat], run.state(stat), run.integers(stat)
            for row, step in enumerate(run.steps.tolist()):
                for column, subject in enumerate(run.by_kind[kind]):
                    value, state = cell(ranks, kind, subject.name, step)
                    assert states[row, column] == state
                    assert values[row, column] == pytest.approx(value, nan_ok=True)
                    assert exact[row, column] == np.nan_to_num(value)
                    seen.add(state)
    assert seen == set(State)
