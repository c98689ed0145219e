"""Each rank's own loss and step time, who is farthest, who misses steps: terminal and model."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.views.ranked import CUT_AT, STEPS, four_ranks, left_behind
from tests.views.samples import Told, network

from gradwatch.cli.main import gradwatch
from gradwatch.store import Writer, open_run
from gradwatch.views.model import build, to_json
from gradwatch.views.model.ranks import MOST_ROWS


def test_every_rank_has_its_own_row(tmp_path: Path) -> None:
    for rank in range(3):
        writer = Writer.create(tmp_path / "run", name="run", rank=rank, world=3)
        for step in range(10):
            seconds = 0.5 if rank == 2 else 0.1
            writer.scalars(
                step, {"loss": rank + 1.25, "step_seconds": seconds, "input_rms": 1.0 + rank}
            )
        writer.close(30.0)
    done = CliRunner().invoke(gradwatch, ["show", str(tmp_path / "run"), "--ranks"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [row[2] for row in rows] == ["1.25", "2.25", "3.25"]
    assert rows[0][4:] == ["1", "–", "100"]
    assert rows[2][4:] == ["3", "–", "500", "slow"]


def test_the_model_names_who_is_far_and_who_misses_steps(tmp_path: Path) -> None:
    with four_ranks(tmp_path / "run") as run:
        model = build(run, Told((left_behind(),), healthy=False))
    found = model.ranks
    notes = {row["rank"]: row["notes"] for row in found["rows"]}
    assert notes == {0: [], 1: [], 2: [f"ends at step {CUT_AT - 1}", "not closed"], 3: ["slow"]}
    assert found["departures"] == [left_behind().message]
    loss, inputs, times = found["spread"]
    assert (loss["lowest"], loss["lowest_rank"]) == (1.0, 0)
    assert (loss["highest"], loss["highest_rank"], loss["farthest_rank"]) == (4.0, 3, 3)
    assert (inputs["median"], inputs["highest"]) == (2.5, 4.0)
    assert (times["highest"], times["farthest_rank"]) == (500.0, 3)
    curve = found["loss"]
    assert curve["x"] == list(range(STEPS))
    assert curve["lowest"][0] == 1.0 + 9 / 4
    assert curve["farthest"][-1] == curve["highest"][-1] == 4.0
    # The cut rank's loss counts as long as it is there.
    assert curve["median"][CUT_AT - 1] == pytest.approx((1.125 + 1.25) / 2 + 1.0)
    assert curve["median"][CUT_AT] == pytest.approx(1.125 + 0.75)
    to_json(model)


def test_one_process_has_no_ranks_to_compare() -> None:
    assert build(network(2, 5), Told()).ranks is None


def test_of_very_many_ranks_the_odd_ones_are_listed(tmp_path: Path) -> None:
    count = MOST_ROWS + 6
    for rank in range(count):
        writer = Writer.create(tmp_path / "run", name="run", rank=rank, world=count)
        for step in range(2 if rank == 7 else 3):
            writer.scalars(step, {"loss": 50.0 if rank == count - 1 else 1.0})
        writer.close(60.0)
    found = build(open_run(tmp_path / "run")).ranks
    assert found["count"] == count
    listed = [row["rank"] for row in found["rows"]]
    assert len(listed) == MOST_ROWS
    assert {7, count - 1} <= set(listed)
    assert listed == sorted(listed)
