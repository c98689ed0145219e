"""What `foreign-optimizer` finds, and what it leaves alone."""

import copy
import logging
from pathlib import Path

import pytest
import torch
from tests.checks.shapes import Severity, make_run, only, said
from tests.checks.trainings import headline, loss_of, loud, mlp, plain, record
from torch import nn

from gradwatch.diagnosis import diagnose
from gradwatch.record import Watcher

NAME = "foreign-optimizer"
OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "holds no parameter" in text]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_of_a_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    model = mlp()
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS[kind](other.parameters())
    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, optimizer, each=plain(model, optimizer))
    assert len(warnings(caplog)) == 1, "said by watch, and once"
    finding = headline(run)
    assert (finding.check, finding.severity, finding.layers) == (NAME, Severity.CRITICAL, ())
    assert "4 tensors, none of them of this model" in finding.message
    diagnosis = diagnose(run)
    assert [f.check for f in diagnosis.at_least(Severity.WARNING)] == [NAME], "one fault, one name"
    assert "not-updated" in {f.check for f in finding.consequences}
    assert not any("keeps no second moments" in item.reason for item in diagnosis.skipped)


def test_an_optimizer_that_watch_was_not_given(tmp_path: Path) -> None:
    model, other = mlp(), mlp()
    optimizer = torch.optim.Adam(other.parameters())
    run = record(tmp_path, model, each=plain(model, optimizer))
    assert "Adam steps, but holds no parameter" in only(NAME, run).message
    assert not said("no-optimizer-step", run)


def test_one_of_two_is_foreign(tmp_path: Path) -> None:
    model = mlp()
    ours = torch.optim.Adam(model[0].parameters(), 0.01)
    theirs = torch.optim.Adam(copy.deepcopy(model[2]).parameters(), 0.01)

    def each(watcher: Watcher, step: int) -> None:
        model.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        watcher.log(loss=loss)
        ours.step()
        theirs.step()

    run = record(tmp_path, model, ours, theirs, each=each)
    finding = only(NAME, run)
    assert finding.layers == ("2",)
    assert "number 2 of 2" in finding.message
    assert headline(run).check == NAME
    assert loud(run) == {NAME, "not-updated"}


def test_a_replaced_layer_is_said_by_not_updated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model[2] = nn.Linear(12, 3)
    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, optimizer, each=plain(model, optimizer))
    assert not said(NAME, run)
    assert only("not-updated", run).layers == ("2",)
    assert not warnings(caplog)


def test_an_optimizer_too_many_is_only_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, critic = mlp(), nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    of_critic = torch.optim.Adam(critic.parameters(), 0.01)
    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, optimizer, of_critic, each=plain(model, optimizer))
    assert only(NAME, run).severity is Severity.INFO
    assert not loud(run)
    assert not warnings(caplog)


def test_master_weights_that_are_copied_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp().bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, 0.1)

    def each(watcher: Watcher, step: int) -> None:
        model.zero_grad()
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(step))
        logits = model(x.bfloat16()).float()
        loss = nn.functional.cross_entropy(logits, x[:, :3].argmax(dim=1))
        loss.backward()
        watcher.log(loss=loss)
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)

    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, optimizer, each=each)
    assert not said(NAME, run)
    assert not warnings(caplog)


def test_the_optimizer_is_replaced_by_the_right_one(tmp_path: Path) -> None:
    model = mlp()
    wrong = torch.optim.Adam(copy.deepcopy(model).parameters())
    right = torch.optim.Adam(model.parameters(), 0.01)
    run = record(tmp_path, model, wrong, each=plain(model, right))
    assert not loud(run)


def test_the_usual_loop_and_odd_files(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = record(tmp_path, model, optimizer, each=plain(model, optimizer))
    assert not said(NAME, run)
    (entry,) = run.info["optimizers"]
    assert (entry["optimizer"], entry["parameters"], entry["foreign"]) == ("Adam", 4, 0)
    for odd in ([3], {"optimizer": 1}, [{"optimizer": "A", "parameters": 2}]):
        run = make_run({"grad_norm": [[1.0]]}, names=["a.weight"], info={"optimizers": odd})
        assert not said(NAME, run)
