"""Reading while a writer writes, seals and deletes as fast as it can."""

import threading

import numpy as np
import pytest
from tests.store.trial import WAIT, Trial, sealing_at, subjects

from gradwatch.run import EventKind
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Retention, Writer, follow, open_run
from gradwatch.store.journal import JournalChunk
from gradwatch.store.parquet import directly

STEPS = 3000


@pytest.mark.parametrize("keep", [None, Retention(bytes=20_000)])
def test_a_reader_never_sees_damage_or_a_wrong_value(tmp_path, keep):
    with sealing_at(15_000):
        writer = Writer.create(tmp_path / "run", name="live", keep=keep)
        ids = writer.declare(subjects(2))
        assert writer.flush(WAIT)

        def write() -> None:
            rows = np.zeros(2, row_dtype(Family.UPDATE))
            for step in range(STEPS):
                rows["update_norm"] = [step + 1, step + 2]
                writer.put(Family.UPDATE, step, ids, rows, np.zeros(2, np.uint8))
                writer.scalars(step, {"loss": float(step)})
                if step % 7 == 0:
                    writer.flush(WAIT)
            writer.close(WAIT)

        thread = threading.Thread(target=write)
        thread.start()
        follower = follow(tmp_path / "run")
        looks, longest = 0, 0
        while thread.is_alive() or not looks:
            for run in (follower.refresh(), open_run(tmp_path / "run")):
                damage = [event for event in run.events if event.kind is EventKind.DAMAGE]
                assert not damage, damage
                norm, state = run.series["update_norm"], run.state("update_norm")
                there = state == State.MEASURED
                true = np.add.outer(run.steps + 1, np.arange(2))
                assert (norm[there] == true[there]).all()
                assert not (state == State.DAMAGED).any()
                assert len(run.steps) >= longest
                longest = len(run.steps)
                looks += 1
        thread.join()
        assert writer.thread.finished.wait(WAIT)
    run = follower.refresh()
    assert run.steps.tolist() == list(range(STEPS))
    assert run.scalars["loss"].tolist() == list(range(STEPS))
    assert run.info["complete"]
    if keep is None:
        assert (run.state("update_norm") == State.MEASURED).all()
    assert looks >= 2


def test_what_was_read_of_a_growing_run_is_not_read_again(tmp_path, monkeypatch):
    decoded, read = [], []

    def call(function, footer, size, pieces, kinds, *more):
        decoded.extend((footer, name) for name in kinds if name.startswith("grad_"))
        return directly(function, footer, size, pieces, kinds, *more)

    rows = JournalChunk.rows
    monkeypatch.setattr(
        JournalChunk, "rows", lambda chunk: read.append(len(chunk.records)) or rows(chunk)
    )
    with sealing_at(60_000):
        trial = Trial(tmp_path / "run", families=(Family.GRAD,)).steps(range(130), flush_every=10)
    with sealing_at(1 << 30):
        trial.steps(range(130, 170), flush_every=10)
        follower = follow(tmp_path / "run", call=call)
        for stop in (170, 180, 190):
            trial.steps(range(len(trial.loss), stop), flush_every=10)
            read.clear()
            run = follower.refresh()
            for stat in run.series:
                assert run.at(stat, run.sampled(stat)).shape[0] == stop
            assert trial.check(run) > 1000
        assert len(decoded) == len(set(decoded)) > 5
        assert sum(read) < 2 * 16 + 10  # the last records, once for all statistics
        trial.close()
