"""What `lost-initialisation` finds, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path

import torch
from tests.checks.shapes import Severity, make_run, only, said, skipped
from tests.checks.trainings import loud, mlp, plain, record
from torch import nn

from gradwatch.run import Run

NAME = "lost-initialisation"


def trained(
    path: Path, change: Callable[[nn.Sequential, int], object], rate: float = 0.02, **options: int
) -> Run:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    each = plain(model, optimizer, after_step=lambda step: change(model, step))
    return record(path, model, optimizer, each=each, **options)


def reset(*layers: int, at: int = 40) -> Callable[[nn.Sequential, int], object]:
    def change(model: nn.Sequential, step: int) -> None:
        if step == at:
            torch.manual_seed(3)
            for layer in layers:
                nn.init.normal_(model[layer].weight)

    return change


def test_one_layer_is_initialised_again(tmp_path: Path) -> None:
    run = trained(tmp_path, reset(2))
    finding = only(NAME, run)
    assert finding.severity is Severity.WARNING
    assert (finding.layers, finding.tensors) == (("2",), ("2.weight",))
    assert (finding.first_step, finding.last_step) == (41, 41)
    assert "before step 41" in finding.message
    assert "the loss went from" in finding.message
    assert "between the steps 40 and 41" in finding.advice[0]
    assert NAME in loud(run)


def test_a_checkpoint_is_loaded_in_the_middle(tmp_path: Path) -> None:
    start = mlp().state_dict()

    def change(model: nn.Sequential, step: int) -> None:
        if step == 40:
            model.load_state_dict(start)

    finding = only(NAME, trained(tmp_path, change, rate=0.1))
    assert finding.layers == ()
    assert "the whole network was set anew" in finding.message


def test_before_the_first_step_it_is_only_mentioned(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)

    def load(step: int) -> None:
        if step == 0:
            nn.init.normal_(model[0].weight)

    run = record(tmp_path, model, optimizer, each=plain(model, optimizer, before_step=load))
    assert only(NAME, run).severity is Severity.INFO
    assert not loud(run)


def test_weights_that_are_clipped_after_every_step(tmp_path: Path) -> None:
    def change(model: nn.Sequential, step: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)

    run = trained(tmp_path, change)
    assert run.scalars["outside_change"][1] > 0.25, "the first time it is a lot"
    assert not said(NAME, run)


def test_a_small_change_now_and_then(tmp_path: Path) -> None:
    def change(model: nn.Sequential, step: int) -> None:
        if step == 40:
            with torch.no_grad():
                model[2].weight.mul_(0.9)

    run = trained(tmp_path, change)
    assert 0.05 < run.scalars["outside_change"][41] < 0.25
    assert not said(NAME, run)


def test_the_usual_loop(tmp_path: Path) -> None:
    run = trained(tmp_path, lambda model, step: None)
    assert not said(NAME, run)
    assert not skipped(NAME, run)
    assert "outside_change" not in run.scalars


def test_where_weights_were_not_compared_it_says_so() -> None:
    run = make_run({"grad_norm": [[1.0]]}, names=["a.weight"])
    assert "not compared" in skipped(NAME, run)[0].reason
    odd = {"weights_compared": True, "outside_changes": [3, {"step": "x"}]}
    run = make_run(
        {"grad_norm": [[1.0]] * 9},
        names=["a.weight"],
        scalars={"outside_change": [0.0] * 8 + [1.0]},
        info=odd,
    )
    assert not said(NAME, run)
