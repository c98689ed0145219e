"""Several ranks as one run, against the statistics of the whole tensor computed on its own."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.store.trial import WAIT, both_readers_agree, kept

from gradwatch.kernel import batch_of, hashes, measure_arrays, merge
from gradwatch.run import Histogram, Placement, Subject
from gradwatch.run.source import Loaded
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State, row_dtype
from gradwatch.store import Writer, open_run
from gradwatch.store.budget import Budget
from gradwatch.store.merge_ranks import MergedSource

SHAPE = (12, 5)
CUTS = [(0, 5), (5, 9), (9, 12)]
FIELDS = ("norm", "mean", "std", "skewness", "kurtosis", "abs_mean", "abs_max", "min", "max")


def row_of(part: np.ndarray) -> np.ndarray:
    """A gradient's row as a recorder would fill it."""
    row = np.zeros(1, row_dtype(Family.GRAD))
    (moments,) = measure_arrays([part])
    for name in FIELDS:
        row[f"grad_{name}"] = moments[name]
    for name in ("count", "nan", "zero_rows"):
        row[f"grad_{name}"] = moments[name]
    row["grad_inf"] = moments["pos_inf"] + moments["neg_inf"]
    row["grad_zero_fraction"] = moments["zeros"] / moments["count"]
    row["grad_sketch"] = part[:, :2].sum()
    return row


def hash_of(part: np.ndarray, offset: int) -> np.uint64:
    batch, keep = batch_of([part])
    found = hashes(batch, np.array([offset], np.int64))[0]
    assert keep  # the memory lives until here
    return found


def write_shards(path, tensors, absent=(), placements=True) -> None:
    for rank, (begin, end) in enumerate(CUTS):
        writer = Writer.create(path, name="shards", rank=rank, world=len(CUTS))
        place = Placement(SHAPE, (begin, 0), (end - begin, SHAPE[1])) if placements else None
        count = (end - begin) * SHAPE[1]
        subject = Subject(
            Kind.PARAMETER, "w", "", (end - begin, SHAPE[1]), "float32", count, placement=place
        )
        ids = writer.declare([subject])
        for step, tensor in enumerate(tensors):
            if (rank, step) in absent:
                continue
            part = np.ascontiguousarray(tensor[begin:end])
            writer.put(Family.GRAD, step, ids, row_of(part), np.zeros(1, np.uint8))
            weights = np.zeros(1, row_dtype(Family.WEIGHT))
            weights["weight_hash"] = hash_of(part, begin * SHAPE[1])
            weights["weight_count"] = count
            writer.put(Family.WEIGHT, step, ids, weights, np.zeros(1, np.uint8))
            bins = np.array([rank + 1], np.uint64)
            writer.histograms(Family.GRAD, step, ids[0], Histogram(rank - 1, bins, bins, 1))
            writer.scalars(step, {"loss": 10.0 * rank + step})
        assert writer.close(WAIT)


@pytest.fixture
def tensors():
    rng = np.random.default_rng(3)
    made = [rng.normal(size=SHAPE).astype(np.float32) * 10.0**power for power in (-3, 0, 4, 0)]
    made[1][2, 3], made[1][10, 0] = np.nan, np.inf
    made[2][:] = 7.5
    made[3][6:8] = 0
    return made


def test_shards_are_the_whole(tmp_path, tensors):
    write_shards(tmp_path / "run", tensors)
    run = open_run(tmp_path / "run")
    assert run.info["ranks"] == 3
    assert run.subjects[0].shape == SHAPE
    assert run.subjects[0].count == 60
    for step, tensor in enumerate(tensors):
        (whole,) = measure_arrays([tensor])
        parts = np.concatenate([measure_arrays([tensor[a:b]]) for a, b in CUTS])
        joined = merge(parts)
        for name in FIELDS:
            got = run.series[f"grad_{name}"][step, 0]
            assert got == pytest.approx(whole[name], rel=1e-5, abs=1e-12, nan_ok=True), (name, step)
            assert got == pytest.approx(joined[name], rel=1e-5, abs=1e-12, nan_ok=True), (
                name,
                step,
            )
        assert run.series["grad_nan"][step, 0] == whole["nan"]
        assert run.series["grad_zero_rows"][step, 0] == whole["zero_rows"]
        assert run.series["grad_zero_fraction"][step, 0] == pytest.approx(whole["zeros"] / 60)
        assert run.series["grad_sketch"][step, 0, 0] == pytest.approx(
            sum(kept(row_of(tensor[a:b])["grad_sketch"])[0, 0] for a, b in CUTS), nan_ok=True
        )
        expected = hash_of(tensor, 0)
        assert run.integers("weight_hash")[step, 0] == expected
    assert (run.state("grad_norm") == State.MEASURED).all()
    histogram = run.histograms("grad", "w")[0]
    assert histogram.first_exponent == -1
    assert histogram.positive.tolist() == [1, 2, 3]
    assert histogram.count == 15
    both_readers_agree(tmp_path / "run")


def test_a_missing_shard_makes_the_step_partial(tmp_path, tensors):
    write_shards(tmp_path / "run", tensors, absent={(1, 2)})
    run = open_run(tmp_path / "run")
    partial = [State.MEASURED, State.MEASURED, State.PARTIAL, State.MEASURED]
    assert run.state("grad_norm")[:, 0].tolist() == partial
    assert run.series["grad_count"][:, 0].tolist() == [60, 60, 40, 60]
    assert list(run.histograms("grad", "w")) == [0, 1, 3]


def test_a_missing_rank_makes_every_step_partial(tmp_path, tensors):
    write_shards(tmp_path / "run", tensors, absent={(2, step) for step in range(4)})
    assert (open_run(tmp_path / "run").state("grad_norm") == State.PARTIAL).all()


def test_copies_count_once_and_scalars_are_per_rank(tmp_path):
    for rank in range(2):
        writer = Writer.create(tmp_path / "run", name="copies", rank=rank, world=2)
        parameter = Subject(Kind.PARAMETER, "w", "", (2,), "float32", 2)
        layer = Subject(Kind.LAYER, "net", "net")
        ids = writer.declare([parameter, layer])
        row = np.zeros(1, row_dtype(Family.GRAD))
        row["grad_norm"], row["grad_count"] = 5.0, 2
        act = np.zeros(1, row_dtype(Family.ACT))
        act["act_count"], act["act_mean"], act["act_std"] = 10, rank * 2.0, 0.0
        act["act_abs_max"], act["act_nonfinite"] = 3.0, rank
        for step in range(3):
            if rank == 0 and step == 1:
                continue  # rank 0 missed a step: rank 1's copy counts
            writer.put(Family.GRAD, step, ids[:1], row, np.zeros(1, np.uint8))
            writer.put(Family.ACT, step, ids[1:], act, np.zeros(1, np.uint8))
            writer.scalars(step, {"loss": float(rank)})
        assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.series["grad_norm"][:, 0].tolist() == [5.0, 5.0, 5.0]
    assert run.series["grad_count"][:, 0].tolist() == [2, 2, 2]
    assert (run.state("grad_norm") == State.MEASURED).all()
    assert run.series["act_count"][:, 0].tolist() == [20, 10, 20]
    assert run.series["act_nonfinite"][:, 0].tolist() == [1, 1, 1]
    assert run.series["act_mean"][0, 0] == pytest.approx((10 * 0 + 9 * 2) / 19)
    assert run.state("act_mean")[:, 0].tolist() == [0, State.PARTIAL, 0]
    assert run.scalars["loss"].tolist() == [0.0, 1.0, 0.0]
    assert run.source.ranks[1].scalars["loss"].tolist() == [1.0, 1.0, 1.0]
    assert run.info["complete"]


def test_a_rank_that_did_not_come_back_is_not_mixed_in(tmp_path, tensors):
    write_shards(tmp_path / "run", tensors)
    writer = Writer.create(tmp_path / "run", name="again", rank=0, world=3)
    place = Placement(SHAPE, (0, 0), (5, 5))
    ids = writer.declare([Subject(Kind.PARAMETER, "w", "", (5, 5), "float32", 25, placement=place)])
    writer.put(Family.GRAD, 1, ids, row_of(tensors[0][:5]), np.zeros(1, np.uint8))
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.series[Stat.GRAD_COUNT][:, 0].tolist() == [60, 25]  # the old steps 2 and 3 are gone
    assert run.state(Stat.GRAD_COUNT)[1, 0] == State.PARTIAL


def test_several_folders_open_as_one(tmp_path, tensors):
    write_shards(tmp_path / "run", tensors)
    (tmp_path / "other").mkdir()
    (folder,) = (tmp_path / "run").glob("0002-*")
    folder.rename(tmp_path / "other" / folder.name)
    whole = open_run([tmp_path / "run", tmp_path / "other"])
    assert (whole.state("grad_norm") == State.MEASURED).all()
    assert (open_run(tmp_path / "run").state("grad_norm") == State.PARTIAL).all()


# -- who counts, against a walk over single cells ------------------------------------------------


class MemoryRank:
    """What the merging of ranks reads of one, made up."""

    def __init__(self, rank, steps, subjects, tables, owners) -> None:
        self.rank, self.steps, self.subjects, self.owners = rank, steps, subjects, owners
        self.attempts = [SimpleNamespace(number=number) for number in range(2)]
        self.tables = tables
        self.loads = 0
        self.budget = Budget()

    def names(self, kind):
        return tuple(subject.name for subject in self.subjects if subject.kind is kind)

    def placements(self, kind):
        return [subject.placement for subject in self.subjects if subject.kind is kind]

    def sampled(self, stat):
        if stat not in self.tables:
            return np.zeros(len(self.steps), bool)
        return (self.tables[stat].states != State.NOT_SAMPLED).any(axis=1)

    def load(self, stat):
        self.loads += 1
        return self.tables[stat]

    def integers(self, stat):
        return np.nan_to_num(self.tables[stat].values).astype(np.uint64)


COUNTS = {Kind.PARAMETER: Stat.GRAD_COUNT, Kind.LAYER: Stat.ACT_COUNT}
STATES = [State.MEASURED] * 12 + list(State)


def some_ranks(rng: np.random.Generator) -> list[MemoryRank]:
    """Shards, replicas, parameters without a placement, layers; some absent, some resumed."""
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
            values = rng.integers(1, 1000, states.shape).astype(float)
            if rng.random() < 0.9:
                tables[stat] = Loaded(np.where(HAS_VALUE[states], values, np.nan), states)
        owners = (rng.random(len(own_steps)) < 0.15).astype(int)
        ranks.append(MemoryRank(rank, own_steps, subjects, tables, owners))
    return ranks


def cell(ranks, kind, name, step):
    """Count and state of one subject on one step, by the words of docs/format.md."""
    attempts = [r.owners[list(r.steps).index(step)] for r in ranks if step in r.steps]
    shards, found, damaged = {}, {}, False
    for rank in ranks:
        columns = [s for s in rank.subjects if s.kind is kind]
        for column, subject in enumerate(columns):
            if subject.name != name:
                continue
            place = subject.placement
            key = rank.rank if kind is Kind.LAYER else place and (place.offset, place.shape)
            shards.setdefault(key, subject)
            row = list(rank.steps).index(step) if step in rank.steps else None
            if row is None or rank.owners[row] != max(attempts) or COUNTS[kind] not in rank.tables:
                continue
            table = rank.tables[COUNTS[kind]]
            state = table.states[row, column]
            damaged |= state == State.DAMAGED
            if state not in (State.NOT_SAMPLED, State.DAMAGED) and key not in found:
                found[key] = table.values[row, column], state
    known = [found[key] for key in shards if key in found]
    valued = [(value, state) for value, state in known if HAS_VALUE[state]]
    if not valued:
        nothing = State.DAMAGED if damaged else State.NOT_SAMPLED
        return np.nan, known[0][1] if known else nothing
    places = [subject.placement for subject in shards.values()]
    whole = not all(places) or sum(2 * 5 for _ in places) == np.prod(places[0].global_shape)
    complete = whole and len(valued) == len(shards)
    total = sum(value for value, _ in valued)
    return total, max(state for _, state in valued) if complete else State.PARTIAL


def test_every_cell_counts_every_shard_once():
    rng = np.random.default_rng(9)
    seen = set()
    for _ in range(60):
        ranks = some_ranks(rng)
        merged = MergedSource(ranks)
        for kind, stat in COUNTS.items():
            loaded, exact = merged.load(stat).whole(len(merged.steps)), merged.integers(stat)
            names = [subject.name for subject in merged.subjects if subject.kind is kind]
            assert loaded.states.shape == (len(merged.steps), len(names))
            for row, step in enumerate(merged.steps.tolist()):
                for column, name in enumerate(names):
                    value, state = cell(ranks, kind, name, step)
                    assert loaded.states[row, column] == state
                    assert loaded.values[row, column] == pytest.approx(value, nan_ok=True)
                    assert exact[row, column] == np.nan_to_num(value)
                    seen.add(state)
    assert seen == set(State)


def test_copies_are_read_only_where_the_lowest_rank_has_nothing():
    steps, states = np.arange(3), np.zeros((3, 1), np.uint8)
    subject = [Subject(Kind.PARAMETER, "w", count=2)]
    table = {Stat.GRAD_COUNT: Loaded(np.full((3, 1), 2.0), states)}
    ranks = [MemoryRank(n, steps, subject, table, np.zeros(3, int)) for n in range(4)]
    assert MergedSource(ranks).load(Stat.GRAD_COUNT).values.tolist() == [[2.0]] * 3
    assert [rank.loads for rank in ranks] == [1, 0, 0, 0]
    gap = np.array([[0], [State.NOT_SAMPLED], [0]], np.uint8)
    ranks[0].tables = {Stat.GRAD_COUNT: Loaded(np.array([[2.0], [np.nan], [2.0]]), gap)}
    assert MergedSource(ranks).load(Stat.GRAD_COUNT).values.tolist() == [[2.0]] * 3
    assert [rank.loads for rank in ranks] == [2, 1, 0, 0]
    for rank in ranks:
        rank.tables = ranks[0].tables
    assert np.isnan(MergedSource(ranks).load(Stat.GRAD_COUNT).values[1])
    assert [rank.loads for rank in ranks] == [3, 1, 0, 0]  # none has rows on step 1
