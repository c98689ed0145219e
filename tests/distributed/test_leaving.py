"""A rank that diverges is named; one that dies neither blocks the others nor spoils the run."""

from pathlib import Path

import numpy as np
from tests.distributed.launching import launch
from tests.distributed.leaving import LEAVES_AT

import gradwatch
from gradwatch.checks.replica_divergence import check
from gradwatch.stats import State


def test_a_replica_that_leaves_is_named_with_layer_and_step(tmp_path: Path) -> None:
    launch(2, "tests.distributed.leaving", str(tmp_path), "silently")
    (folder,) = (tmp_path / "runs").iterdir()  # the launcher's run id is enough to agree on one
    run = gradwatch.open_run(folder)
    assert sorted(run.ranks) == [0, 1]
    (finding,) = check(run)
    assert isinstance(finding, gradwatch.finding.Finding)
    assert finding.layers == ("odd",)
    assert finding.first_step == LEAVES_AT
    assert "on rank 1" in finding.message
    diagnosis = gradwatch.diagnose(run)
    assert "replica-divergence" in {f.check for f in diagnosis.findings}


def test_a_killed_rank_leaves_whole_steps_whole_and_the_rest_partial(tmp_path: Path) -> None:
    launch(2, "tests.distributed.leaving", str(tmp_path), "killed", check=False)
    run = gradwatch.open_run(tmp_path / "killed")
    states = run.state("grad_norm")
    column = run.names.index("first.weight")
    whole = states[:, column] == State.MEASURED
    assert whole[:LEAVES_AT].all()
    after = run.steps >= LEAVES_AT
    assert not whole[after].any()
    assert set(np.unique(states[after][:, column])) <= {
        State.PARTIAL,
        State.NOT_SAMPLED,
        State.NO_GRADIENT,
        State.SKIPPED_STEP,
    }
    assert run.info["complete"] is False
