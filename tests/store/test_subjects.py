"""Tables of subjects: ranks share one, placements are their own."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.store.trial import WAIT

from gradwatch.run import Placement, Subject
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store import Writer, open_run
from gradwatch.store.subjects import COLUMNS, SubjectTable, described

RANKS = 3


def place_of(rank: int) -> Placement:
    return Placement((2 * RANKS, 5), (2 * rank, 0), (2, 5))


def write(path, *, close=True, frozen_on=None) -> list[Writer]:
    """Two sharded parameters and a layer on each rank; on one rank they may be frozen."""
    writers = []
    for rank in range(RANKS):
        writer = Writer.create(path, name="many", rank=rank, world=RANKS)
        subjects = [
            Subject(
                Kind.PARAMETER,
                name,
                shape=(2 * RANKS, 5),
                count=10 * RANKS,
                frozen=rank == frozen_on,
                placement=place_of(rank),
            )
            for name in ("a", "b")
        ]
        ids = writer.declare([*subjects, Subject(Kind.LAYER, "layer")])
        rows = np.zeros(2, row_dtype(Family.GRAD))
        rows[Stat.GRAD_COUNT] = 10
        writer.put(Family.GRAD, 0, ids[:2], rows, np.zeros(2, np.uint8))
        assert writer.flush(WAIT)
        writers.append(writer)
        if close:
            assert writer.close(WAIT)
    return writers


@pytest.mark.parametrize("close", [True, False])
def test_every_rank_has_its_own_placements(tmp_path, close):
    writers = write(tmp_path / "run", close=close)
    run = open_run(tmp_path / "run")
    for rank in range(RANKS):
        own = run.ranks[rank].subjects
        assert [subject.name for subject in own] == ["a", "b", "layer"]
        assert [subject.placement for subject in own] == [place_of(rank), place_of(rank), None]
    assert run.series["grad_count"].tolist() == [[30.0, 30.0]]
    assert [subject.placement for subject in run.subjects] == [None, None, None]
    for writer in writers:
        writer.close(WAIT)


def test_ranks_share_what_is_the_same(tmp_path):
    write(tmp_path / "run")
    first, *others = open_run(tmp_path / "run").source.sources
    assert all(source.table is first.table for source in others)


def test_a_rank_that_differs_has_a_table_of_its_own(tmp_path):
    write(tmp_path / "run", frozen_on=1)
    first, second, third = open_run(tmp_path / "run").source.sources
    assert first.table is third.table is not second.table
    assert [source.subjects[0].frozen for source in (first, second, third)] == [False, True, False]


def test_a_resumed_rank_is_described_by_its_newest_attempt(tmp_path):
    write(tmp_path / "run")
    write(tmp_path / "run", frozen_on=2)
    source = open_run(tmp_path / "run").source.sources[2]
    assert [subject.frozen for subject in source.subjects] == [True, True, False]
    assert source.names(Kind.PARAMETER) == ("a", "b")
    assert source.placements(Kind.PARAMETER) == [place_of(2), place_of(2)]


def test_a_lost_table_costs_the_names_of_one_rank(tmp_path):
    write(tmp_path / "run")
    (folder,) = (tmp_path / "run").glob("0001-*")
    (folder / "subjects.parquet").unlink()
    run = open_run(tmp_path / "run")
    assert run.ranks[0].names == ("a", "b")
    assert all("name lost" in name for name in run.ranks[1].names)
    assert not run.info["complete"]


def test_ids_that_are_in_no_order_or_come_twice_are_refused():
    place = SimpleNamespace(size=8, checksum=None)
    unchecked = SimpleNamespace(columns=dict.fromkeys(COLUMNS, place))

    def columns(*ids):
        return lambda: [np.array(ids), ["parameter"] * 2, ["a", "b"], ["", ""], ["{}", "{}"]]

    assert list(described("run", unchecked, columns(3, 7)).by_id) == [3, 7]
    for ids in ((7, 3), (3, 3)):
        with pytest.raises(ValueError, match="order"):
            described("run", unchecked, columns(*ids))


def test_of_two_ids_of_one_name_there_is_one_column():
    subjects = {n: Subject(Kind.LAYER, name) for n, name in ((5, "x"), (2, "y"), (9, "x"))}
    table = SubjectTable(subjects)
    assert table.names[Kind.LAYER] == ("y", "x")
    assert table.columns[Kind.LAYER] == {"y": 0, "x": 1}


def test_subjects_that_come_while_a_run_is_read_wait_for_the_next_opening(tmp_path):
    writers = write(tmp_path / "run", close=False)
    source = open_run(tmp_path / "run").source.sources[0]
    assert source.names(Kind.PARAMETER) == ("a", "b")
    writers[0].declare([Subject(Kind.PARAMETER, "c", placement=place_of(0))])
    for writer in writers:
        assert writer.close(WAIT)
    source.attempts = [attempt.folder.look() for attempt in source.attempts]
    assert source.placements(Kind.PARAMETER) == [place_of(0), place_of(0)]
    assert source.load(Stat.GRAD_COUNT).values.tolist() == [[10.0, 10.0]]
    assert open_run(tmp_path / "run").ranks[0].names == ("a", "b", "c")
