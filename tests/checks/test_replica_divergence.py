"""Copies on ranks: equal, leaving, never equal, pieces that are no copies."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gradwatch.checks.replica_divergence import check
from gradwatch.finding import Finding, Severity
from gradwatch.run import Placement, Run, Subject
from gradwatch.stats import Family, Kind, row_dtype
from gradwatch.store import Writer, open_run


@dataclass
class Ranks:
    """Writes a run of several ranks with chosen hashes: `hashes[rank][step]`."""

    folder: Path

    def run(self, hashes: list[list[int]], placements: list[Placement] | None = None) -> Run:
        path = self.folder / f"run{len(list(self.folder.iterdir()))}"
        for rank, own in enumerate(hashes):
            writer = Writer.create(path, name="r", rank=rank, world=len(hashes))
            place = placements[rank] if placements else None
            subject = Subject(Kind.PARAMETER, "a.weight", "a", (4,), "float32", 4, placement=place)
            ids = writer.declare([subject])
            for step, value in enumerate(own):
                rows = np.zeros(1, row_dtype(Family.WEIGHT))
                rows["weight_hash"], rows["weight_count"] = value, 4
                writer.put(Family.WEIGHT, step, ids, rows, np.zeros(1, np.uint8))
            writer.close(30.0)
        return open_run(path)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


BIG = 2**63 + 1  # differs from BIG + 1 only where float64 would not see it


def test_the_rank_the_layer_and_the_step_that_left_are_named(ranks: Ranks) -> None:
    run = ranks.run([[BIG] * 6, [BIG] * 6, [BIG] * 3 + [BIG + 1] * 3])
    (finding,) = check(run)
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.CRITICAL
    assert (finding.layers, finding.first_step) == (("a",), 3)
    assert "on rank 2 differs from the others since step 3" in finding.message


def test_equal_copies_are_quiet(ranks: Ranks) -> None:
    assert list(check(ranks.run([[1, 2, 3], [1, 2, 3]]))) == []


def test_a_step_that_one_rank_did_not_record_is_not_compared(ranks: Ranks) -> None:
    assert list(check(ranks.run([[1, 2, 3], [1, 2]]))) == []


def test_models_that_never_were_equal_are_only_mentioned(ranks: Ranks) -> None:
    (finding,) = check(ranks.run([[1, 2], [5, 6]]))
    assert isinstance(finding, Finding)
    assert finding.severity is Severity.INFO


def test_pieces_are_no_copies(ranks: Ranks) -> None:
    pieces = [Placement((8,), (0,), (4,)), Placement((8,), (4,), (4,))]
    assert list(check(ranks.run([[1, 2], [5, 6]], pieces))) == []


def test_one_rank_has_no_replica(ranks: Ranks) -> None:
    assert list(check(ranks.run([[1, 2]]))) == []
