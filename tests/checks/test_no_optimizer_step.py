"""What `no-optimizer-step` finds, and what it leaves alone."""

import logging
from pathlib import Path

import pytest
import torch
from tests.checks.shapes import make_run, only, said, skipped
from tests.checks.trainings import headline, loss_of, loud, mlp, plain, record
from torch import nn

from gradwatch.finding import Finding, Severity
from gradwatch.live import watch
from gradwatch.record import Watcher
from gradwatch.store import open_run

NAME = "no-optimizer-step"


def test_a_forgotten_step_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    live: list[Finding] = []

    def each(watcher: Watcher, step: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        watcher.log(loss=loss)

    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, optimizer, each=each, steps=200, on_finding=live.append)
    said_live = [text for text in caplog.messages if NAME in text]
    assert len(said_live) == 1
    assert "20 backward passes" in said_live[0]
    assert [item.check for item in live] == [NAME]
    finding = headline(run)
    assert (finding.check, finding.severity, finding.layers) == (NAME, Severity.CRITICAL, ())
    assert "200 backward passes and 200 losses" in finding.message
    assert "Adam" in finding.advice[0]
    first, last = loss_of(model, 0).item(), loss_of(model, 199).item()
    assert run.info["without_step"]["first_loss"] == pytest.approx(first)
    assert run.info["without_step"]["last_loss"] == pytest.approx(last)
    assert loud(run) == {NAME, "slow-convergence"}
    (follows,) = finding.consequences
    assert "after 200 batches" in follows.message


def test_the_backward_pass_is_forgotten_as_well(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def each(watcher: Watcher, step: int) -> None:
        watcher.log(loss=loss_of(model, step))

    finding = headline(record(tmp_path, model, optimizer, each=each))
    assert finding.check == NAME
    assert "60 losses" in finding.message
    assert "backward()" in finding.cause


def test_gradients_that_are_never_cleared_are_no_step_either(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = record(
        tmp_path, model, optimizer, each=lambda _, step: loss_of(model, step).backward(), steps=30
    )
    assert "30 backward passes, and no optimizer step" in headline(run).message


@pytest.mark.parametrize("passes", [19, 20])
def test_twenty_are_enough(tmp_path: Path, passes: int) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def each(_: Watcher, step: int) -> None:
        optimizer.zero_grad()
        loss_of(model, step).backward()

    run = record(tmp_path, model, optimizer, each=each, steps=passes)
    assert bool(said(NAME, run)) is (passes == 20)


def test_a_long_accumulation_is_fine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def each(watcher: Watcher, step: int) -> None:
        loss = loss_of(model, step)
        (loss / 64).backward()
        watcher.log(loss=loss)
        if step % 64 == 63:
            optimizer.step()
            optimizer.zero_grad()

    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, optimizer, each=each, steps=3 * 64)
    assert not said(NAME, run)
    assert not any(NAME in text for text in caplog.messages)
    assert not run.info["without_step"], "taken back by the first step"


def test_a_step_the_user_tells_is_a_step(tmp_path: Path) -> None:
    model = mlp()

    def each(watcher: Watcher, step: int) -> None:
        model.zero_grad()
        loss_of(model, step).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        watcher.step()

    assert not said(NAME, record(tmp_path, model, each=each))


def test_steps_that_nobody_tells_are_not_called_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()

    def each(_: Watcher, step: int) -> None:
        model.zero_grad()
        loss_of(model, step).backward()
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad

    with caplog.at_level(logging.WARNING, "gradwatch"):
        run = record(tmp_path, model, each=each)
    assert not said(NAME, run)
    assert "watcher.step()" in skipped(NAME, run)[0].reason
    assert sum("watcher.step()" in text for text in caplog.messages) == 1


def test_closures_are_fine(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=25)

    def each(_: Watcher, step: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        optimizer.step(closure)

    assert not said(NAME, record(tmp_path, model, optimizer, each=each, steps=4))


def test_a_scaler_that_always_skips_has_another_name(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10**6)

    def each(watcher: Watcher, step: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        scaler.scale(loss * float("inf")).backward()
        watcher.log(loss=loss)
        scaler.step(optimizer)
        scaler.update()

    run = record(tmp_path, model, optimizer, each=each, scaler=scaler)
    assert not said(NAME, run)
    assert said("loss-scale-overflow", run)


def two_optimizers() -> tuple[nn.Sequential, list[torch.optim.Optimizer]]:
    model = mlp()
    return model, [torch.optim.Adam(layer.parameters(), 0.01) for layer in (model[0], model[2])]


@pytest.mark.parametrize("delay", [0, 2, 5])
def test_one_of_two_optimizers(tmp_path: Path, delay: int) -> None:
    """It never steps (0), or on every second or fifth step only, as critics' partners do."""
    model, (first, second) = two_optimizers()

    def each(watcher: Watcher, step: int) -> None:
        first.zero_grad()
        second.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        watcher.log(loss=loss)
        first.step()
        if delay and step % delay == delay - 1:
            second.step()

    run = record(tmp_path, model, first, second, each=each)
    if delay:
        assert not said(NAME, run)
        assert not said("not-updated", run)
        return
    finding = only(NAME, run)
    assert finding.severity is Severity.CRITICAL
    assert finding.layers == ("2",)
    assert "60 gradients" in finding.message
    assert "Adam, number 2 of 2" in finding.message
    assert headline(run).check == NAME
    (follows,) = headline(run).consequences
    assert (follows.check, follows.layers) == ("not-updated", ("2",))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Linear(4, 6)
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.mark.parametrize("forgotten", ["step", "zero_grad", None])
def test_a_generator_that_never_steps(tmp_path: Path, forgotten: str | None) -> None:
    """What its loss leaves in the critic is cleared before the critic's own backward, or not."""
    pair = Pair()
    of_critic = torch.optim.Adam(pair.critic.parameters(), 1e-3)
    of_generator = torch.optim.Adam(pair.generator.parameters(), 1e-3)

    def each(watcher: Watcher, step: int) -> None:
        torch.manual_seed(step)
        real, fake = torch.randn(16, 6) + 1, pair.generator(torch.randn(16, 4))
        if forgotten != "zero_grad":
            of_critic.zero_grad()
        d_loss = pair.critic(fake.detach()).mean() - pair.critic(real).mean()
        d_loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        g_loss = -pair.critic(fake).mean()
        g_loss.backward()
        watcher.log(d_loss=d_loss, g_loss=g_loss)
        if forgotten is None:
            of_generator.step()

    run = record(tmp_path, pair, of_generator, of_critic, each=each)
    assert [item.layers for item in said(NAME, run)] == ([("generator",)] if forgotten else [])
    assert bool(said("stale-gradients", run)) is (forgotten == "zero_grad")


def test_optimizers_that_a_file_made_up_do_not_break_it() -> None:
    odd = {"silent_optimizers": [3, {"backwards": "x"}], "without_step": {"backwards": None}}
    assert not said(NAME, make_run({"grad_norm": [[1.0]]}, names=["a.weight"], info=odd))


def test_the_usual_loop(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run = record(tmp_path, model, optimizer, each=plain(model, optimizer))
    assert not said(NAME, run)
    assert "without_step" not in run.info


def test_a_process_that_dies_leaves_the_count(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    watcher = watch(model, optimizer, run=tmp_path / "run")
    assert isinstance(watcher, Watcher)
    for step in range(50):
        optimizer.zero_grad()
        loss_of(model, step).backward()
    watcher.flush()
    assert said(NAME, open_run(tmp_path / "run"))
    watcher.close()
