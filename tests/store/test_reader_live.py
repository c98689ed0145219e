"""Reading while a writer writes, seals and deletes as fast as it can."""

import threading

import numpy as np
import pytest
from tests.store.trial import WAIT, sealing_at, subjects

from gradwatch.run import EventKind
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Retention, Writer, follow, open_run

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
