"""Real processes under torchrun: what is read back is the truth of the whole, not of a rank."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.distributed.cases import CASES, STEPS, Case
from tests.distributed.launching import launch
from tests.distributed.oracle import truth

import gradwatch
from gradwatch.stats import State


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case, in two launches: starting a process costs more than training in it."""
    folder = tmp_path_factory.mktemp("parallel")
    for ranks in sorted({case.ranks for case in CASES}):
        names = [case.name for case in CASES if case.ranks == ranks]
        launch(ranks, "tests.distributed.rank", str(folder), *names)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
class TestWhole:
    def test_gradients_weights_and_updates_are_those_of_one_process(
        self, case: Case, trained: Path
    ) -> None:
        run, true = gradwatch.open_run(trained / case.name), truth(case)
        assert run.steps.tolist()[:STEPS] == list(range(STEPS))
        for name in true.gradients[0]:
            for step in range(STEPS):
                gradient = true.gradients[step][name].numpy().ravel()
                expected = {
                    "grad_count": gradient.size,
                    "grad_norm": np.linalg.norm(gradient),
                    "grad_mean": gradient.mean(),
                    "grad_std": gradient.std(),
                    "grad_min": gradient.min(),
                    "grad_max": gradient.max(),
                    "weight_norm": true.weights[step][name].norm().item(),
                    "update_norm": true.updates[step][name].norm().item(),
                }
                size = float(np.abs(gradient).max())
                for stat, value in expected.items():
                    got = run.column(stat, name)[step]
                    assert got == pytest.approx(value, rel=2e-3, abs=2e-4 * size), (
                        f"{stat} of {name} at step {step}"
                    )

    def test_nothing_is_partial_or_counted_twice(self, case: Case, trained: Path) -> None:
        run = gradwatch.open_run(trained / case.name)
        states = run.state("grad_norm")[:STEPS]
        assert (states == State.MEASURED).all(), np.unique(states)
        counts = run.integers("grad_count")[0]
        assert counts.tolist() == [48, 8, 40, 5, 5, 1]

    def test_the_case_would_notice_local_gradients(self, case: Case, trained: Path) -> None:
        """Without averaging, or from one piece alone, the number would be another."""
        whole = truth(case).gradients[0]["first.weight"].norm().item()
        if case.ranks == case.same_data:
            rank = gradwatch.open_run(trained / case.name).source.ranks[0]
            local = float(rank.column("grad_norm", "first.weight")[0])
        else:
            local = json.loads((trained / f"{case.name}.0.json").read_text())["local"]
        assert abs(local - whole) > 0.05 * whole

    def test_the_clip_factor_is_known(self, case: Case, trained: Path) -> None:
        run, true = gradwatch.open_run(trained / case.name), truth(case)
        if case.clip:
            got = run.scalars["clip_factor"][:STEPS]
            assert got.tolist() == pytest.approx(true.clip, rel=1e-3)
            assert min(true.clip) < 0.9

    def test_every_rank_keeps_its_own_loss(self, case: Case, trained: Path) -> None:
        run, true = gradwatch.open_run(trained / case.name), truth(case)
        for rank, own in run.source.ranks.items():
            expected = [losses[case.data_rank(rank)] for losses in true.losses]
            assert own.scalars["loss"][:STEPS].tolist() == pytest.approx(expected, rel=1e-3)
