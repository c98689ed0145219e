"""What is said first of small real trainings, and what is folded under it."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

import gradwatch
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.finding import Finding, Severity

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def blobs(noise: float = 1.0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Four clusters."""
    generator = torch.Generator().manual_seed(1)
    centres = 1.5 * torch.randn(4, 16, generator=generator)
    while True:
        labels = torch.randint(4, (64,), generator=generator)
        yield centres[labels] + noise * torch.randn(64, 16, generator=generator), labels


def trained(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Batches,
    steps: int = 120,
    after: Callable[[], None] = lambda: None,
) -> Diagnosis:
    torch.set_num_threads(1)
    watcher = gradwatch.watch(model, optimizer, run=folder / "run", every=1)
    for _, (inputs, labels) in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        watcher.log(loss=loss)
        optimizer.step()
        after()
    watcher.close()
    return diagnose(gradwatch.open_run(folder / "run"))


def warned(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {item.check: item for item in diagnosis.everything() if item.severity > Severity.INFO}


class Adapted(nn.Module):
    """A frozen layer and a low-rank product beside it, whose second factor starts at zero."""

    def __init__(self, inputs: int, outputs: int, *, both_zero: bool, cut: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.first = nn.Linear(inputs, 4, bias=False)
        self.second = nn.Linear(4, outputs, bias=False)
        self.cut = cut
        nn.init.zeros_(self.second.weight)
        if both_zero:
            nn.init.zeros_(self.first.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = self.second(self.first(x))
        return self.base(x) + (added.detach() if self.cut else added)


def adapted(folder: Path, *, both_zero: bool = False, cut: bool = False) -> Diagnosis:
    torch.manual_seed(0)
    model = nn.Sequential(
        Adapted(16, 32, both_zero=both_zero, cut=cut),
        nn.ReLU(),
        Adapted(32, 4, both_zero=False, cut=False),
    )
    given = [p for p in model.parameters() if p.requires_grad]
    return trained(folder, model, Adam(given, 5e-3), blobs())


def test_a_factor_that_is_zero_on_purpose_is_no_fault(tmp_path: Path) -> None:
    assert adapted(tmp_path).healthy


def test_two_factors_that_are_both_zero_wait_for_each_other(tmp_path: Path) -> None:
    root = adapted(tmp_path, both_zero=True).findings[0]
    assert (root.check, root.layers[0]) == ("symmetric-weights", "0.first")
    assert "no-gradient" in {item.check for item in root.consequences}


def test_a_zero_factor_that_no_gradient_reaches_follows_from_that(tmp_path: Path) -> None:
    root = adapted(tmp_path, cut=True).findings[0]
    assert (root.check, root.layers[0]) == ("no-gradient", "0.second")
    assert {"symmetric-weights", "bad-init"} <= {item.check for item in root.consequences}


class Residual(nn.Module):
    """A branch behind a gain that starts at nothing."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.branch = nn.Linear(32, 32)
        self.gain = nn.Parameter(torch.full((32,), gain))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.branch(x).relu()


class ZeroHead(nn.Linear):
    """A head that starts at zero."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


@pytest.mark.parametrize(
    ("gain", "optimizer"), [(0.0, partial(Adam, lr=1e-2)), (1e-4, partial(SGD, lr=0.1))]
)
def test_gains_and_heads_that_start_at_nothing_are_healthy(
    tmp_path: Path, gain: float, optimizer: Callable[..., Optimizer]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), Residual(gain), Residual(gain), ZeroHead(32, 4))
    assert trained(tmp_path, model, optimizer(model.parameters()), blobs()).healthy


def test_a_zero_head_that_learns_too_slowly_is_slow_and_nothing_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), ZeroHead(32, 4))
    diagnosis = trained(tmp_path, model, SGD(model.parameters(), 1e-5), blobs())
    assert {"slow-convergence", "not-learning"} & warned(diagnosis).keys()
    assert "symmetric-weights" not in warned(diagnosis)


def test_a_rate_that_decays_to_nothing_is_not_blamed_on_dead_units(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    optimizer = SGD(model.parameters(), 0.02)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 30))
    diagnosis = trained(tmp_path, model, optimizer, blobs(4.0), 200, scheduler.step)
    small = warned(diagnosis)["update-ratio-too-small"]
    assert (small.layers, small.first_step) == ((), 30)
    assert "dead-units" not in {item.check for item in diagnosis.findings[:1]}


class Spare(nn.Module):
    """A network with a small layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle, self.head = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.spare = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.middle(self.body(x).relu()).relu()
        return torch.as_tensor(self.head(hidden))


def test_a_small_unused_layer_explains_no_explosion_and_no_slowness(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Spare()
    diagnosis = trained(tmp_path, model, Adam(model.parameters(), 1.0), blobs(), 200)
    (unused,) = [item for item in diagnosis.findings if item.check == "no-gradient"]
    assert {item.check for item in unused.consequences} <= {"not-updated"}
    assert warned(diagnosis)["weight-explosion"].layers == ()


def test_a_small_unused_layer_does_not_hide_a_rate_that_is_too_small(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Spare()
    diagnosis = trained(tmp_path, model, SGD(model.parameters(), 1e-7), blobs(), 120)
    roots = {item.check: item for item in diagnosis.findings}
    assert "slow-convergence" in {i.check for i in roots["update-ratio-too-small"].consequences}
    assert "slow-convergence" not in {i.check for i in roots["no-gradient"].consequences}


class TwoTypes(nn.Module):
    """Tokens and types of tokens, of which the task has only one."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.kind = nn.Embedding(50, 32), nn.Embedding(2, 32)
        self.layer, self.head = nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.token(x) + self.kind(torch.zeros_like(x))
        return torch.as_tensor(self.head(self.layer(hidden).relu().mean(1)))


def tokens(*, noise: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        batch = torch.randint(50, (32, 3), generator=generator)
        labels = (batch.float().mean(1) > 25).long()
        yield batch, torch.randint(2, (32,), generator=generator) if noise else labels


@pytest.mark.parametrize("noise", [False, True])
def test_rows_that_a_task_never_uses_are_an_information(tmp_path: Path, *, noise: bool) -> None:
    torch.manual_seed(0)
    model = TwoTypes()
    diagnosis = trained(tmp_path, model, Adam(model.parameters(), 3e-3), tokens(noise=noise))
    (unused,) = [item for item in diagnosis.findings if item.check == "dead-units"]
    assert unused.layers == ("kind",)
    assert (unused.severity, unused.consequences) == (Severity.INFO, ())
    assert diagnosis.healthy is (not noise)
    assert noise is ("not-learning" in warned(diagnosis))


class LastStep(nn.Module):
    """A recurrent layer in two directions, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(20, 16)
        self.rnn = nn.LSTM(16, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.rnn(self.token(x))[0][:, -1]))


def test_one_direction_read_at_its_last_step_is_an_information(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LastStep()
    batches = ((x % 20, (x[:, 2] % 20 > 9).long()) for x, _ in tokens(noise=False))
    diagnosis = trained(tmp_path, model, Adam(model.parameters(), 1e-2), batches)
    (silent,) = [item for item in diagnosis.findings if item.check == "no-gradient"]
    assert diagnosis.healthy
    assert silent.tensors == ("rnn.weight_hh_l1_reverse",)
    assert "1 of 16 tensors of rnn" in silent.message
    assert [item.check for item in silent.consequences] == ["not-updated"]
