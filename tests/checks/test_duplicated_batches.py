"""What `duplicated-batches` finds, and what it leaves alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, make_run, only, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.live import watch
from gradwatch.run import Run
from gradwatch.store import open_run

NAME = "duplicated-batches"


def run_of(
    folder: Path,
    which: Callable[[int], int],
    *,
    words: bool = False,
    after: Callable[[int], Mapping[str, float]] | None = None,
    **options: object,
) -> Run:
    """A training whose step takes the batch of this number."""
    torch.manual_seed(0)
    if words:
        batches = list(torch.randint(50, (60, 16, 4)))
        model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 3))
    else:
        batches = list(torch.randn(60, 16, 6))
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def loss_of(step: int) -> Tensor:
        batch = batches[which(step)]
        return F.cross_entropy(model(batch), batch[:, :3].argmax(1))

    return trained(folder, model, loss_of, after=after, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [True, False])
def test_each_batch_comes_twice_or_more(tmp_path: Path, words: bool) -> None:
    finding = only(NAME, run_of(tmp_path, lambda step: step // 4, words=words))
    assert (finding.severity, finding.layers, finding.first_step) == (Severity.WARNING, (), 1)
    assert "10 different batches on 40 steps" in finding.message


@pytest.mark.parametrize("words", [True, False])
def test_batches_that_differ(tmp_path: Path, words: bool) -> None:
    assert not said(NAME, run_of(tmp_path, lambda step: step, words=words))


def test_full_batch_training_is_meant(tmp_path: Path) -> None:
    assert not said(NAME, run_of(tmp_path, lambda step: 0))


def test_a_closure_that_feeds_the_batch_several_times_is_full_batch_training(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
    inputs = torch.linspace(-3, 3, 100)[:, None]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), torch.sin(inputs))
        loss.backward()
        return loss

    with watch(model, optimizer, run=tmp_path / "run", every=1) as watcher:
        for _ in range(20):
            watcher.log(loss=optimizer.step(closure))
    assert not said(NAME, open_run(tmp_path / "run"))


def test_at_the_limit(tmp_path: Path) -> None:
    """Of 39 pairs of steps 20 are equal; then every third."""
    assert said(NAME, run_of(tmp_path / "a", lambda step: step // 2))
    assert not said(NAME, run_of(tmp_path / "b", lambda step: step - step % 3 // 2))


def test_several_steps_on_a_batch_of_a_policy(tmp_path: Path) -> None:
    run = run_of(tmp_path, lambda step: step // 4, after=lambda step: {"reward": float(step)})
    assert only(NAME, run).severity is Severity.INFO


def test_the_same_order_in_every_epoch_is_mentioned(tmp_path: Path) -> None:
    finding = only(NAME, run_of(tmp_path, lambda step: step % 10))
    assert finding.severity is Severity.INFO
    assert finding.message == "every 10 steps the same batches come in the same order"


def test_a_shuffled_epoch_is_not(tmp_path: Path) -> None:
    order = [place for _ in range(4) for place in torch.randperm(10).tolist()]
    assert not said(NAME, run_of(tmp_path, lambda step: order[step]))


def test_steps_apart_are_not_compared() -> None:
    run = make_run(
        {},
        names=["a.weight"],
        steps=range(0, 80, 4),
        scalars={"batch_fingerprint": [5.0, 6.0] * 10},
    )
    assert not said(NAME, run)
