"""The loop of the zoo: turns, silent optimizers, batches, modes, and what is logged."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from gradwatch.zoo.tasks import curve
from gradwatch.zoo.training import Draw, Length, Training, Turn, family, train


def plain(**fields: Any) -> Training:
    torch.manual_seed(1)
    task = curve(torch.Generator().manual_seed(2))
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 1))
    return Training(model, task, SGD(model.parameters(), 0.1), 12, 4, **fields)


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, **numbers: Any) -> None:
        self.lines.append({name: float(torch.as_tensor(v).detach()) for name, v in numbers.items()})


def test_the_plain_loop_is_the_one_a_person_writes() -> None:
    ours, theirs = plain(clip=0.5, accumulate=2, schedule=lambda s: 1 / (s + 1)), plain()
    data = torch.Generator()
    torch.manual_seed(3)
    train(ours, [])
    torch.manual_seed(3)
    theirs.model.train()
    for step in range(12):
        theirs.optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        theirs.optimizer.zero_grad()
        for _ in range(2):
            x, y = theirs.task.sample(4, data)
            (nn.functional.mse_loss(theirs.model(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.5)
        theirs.optimizer.step()
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_turns_move_their_own_parameters_and_log_their_own_names() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [SGD(first.parameters(), 0.1), SGD(second.parameters(), 0.1)]
    before = second.weight.detach().clone()
    x, log = torch.ones(3, 2), Log()
    turns = (
        Turn("d_loss", lambda: first(x).pow(2).mean(), optimizers[0]),
        Turn("g_loss", lambda: (first(x) * second(x)).mean(), optimizers[1]),
    )
    training = plain()
    training.model = nn.ModuleList([first, second])
    training.turns, training.log, training.steps = turns, log, 3
    training.numbers = lambda step: {"reward": step}
    assert training.optimizers == tuple(optimizers)
    train(training, [])
    assert [list(line) for line in log.lines] == [["d_loss"], ["g_loss"], ["reward"]] * 3
    assert log.lines[-1] == {"reward": 2.0}
    assert not torch.equal(second.weight, before)


def test_a_silent_optimizer_never_steps() -> None:
    training = plain()
    parts = [training.model[0], training.model[3]]  # type: ignore[index]
    training.optimizer, other = (SGD(part.parameters(), 0.1) for part in parts)
    training.also, training.silent = (other,), frozenset({1})
    before = [part.weight.detach().clone() for part in parts]
    train(training, [])
    assert not torch.equal(parts[0].weight, before[0])
    assert torch.equal(parts[1].weight, before[1])
    assert parts[1].weight.grad is not None


def taken(training: Training, count: int) -> list[Tensor]:
    return [training.take()[0] for _ in range(count)]


def test_batches_repeat_or_come_in_the_order_of_the_set() -> None:
    twice = taken(plain(repeat=2), 4)
    assert torch.equal(twice[0], twice[1])
    assert not torch.equal(twice[1], twice[2])
    rows = torch.arange(10.0)[:, None], torch.arange(10.0)
    in_order = torch.cat(taken(plain(dataset=rows, shuffle=False), 5))
    assert in_order.flatten().tolist() == [float(i % 10) for i in range(20)]
    pair = ((rows[0], rows[0] + 1), rows[1])
    (a, b), _ = plain(dataset=pair).take()
    assert torch.equal(a + 1, b)


@pytest.mark.parametrize(
    ("fields", "training_mode", "validation_mode"),
    [
        ({}, [True] * 3, [False] * 3),
        ({"stay_in_evaluation": True}, [True, False, False], [False] * 3),
        ({"validate_in_training_mode": True}, [True] * 3, [True] * 3),
        ({"train_mode": False}, [False] * 3, [False] * 3),
    ],
)
def test_modes(
    fields: dict[str, bool], training_mode: list[bool], validation_mode: list[bool]
) -> None:
    training = plain(validate_every=1, **fields)
    training.steps, training.log = 3, Log()
    modes: dict[bool, list[bool]] = {True: [], False: []}

    def hook(module: nn.Module, args: object, out: object) -> None:
        modes[torch.is_grad_enabled()].append(module.training)

    training.model.register_forward_hook(hook)
    train(training, [])
    assert modes[True] == training_mode
    assert modes[False] == validation_mode
    assert [list(line) for line in training.log.lines] == [["loss"], ["val_loss"]] * 3


def test_a_family_changes_its_recipe_and_then_makes_the_optimizer() -> None:
    def recipe(draw: Draw) -> Training:
        made = plain(build=lambda model: SGD(model.parameters(), 0.1))
        made.steps = draw.steps(40)
        return made

    def wider(training: Training, draw: Draw) -> None:
        training.model = nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 1))

    one = family("mlp", "other", "Another.", recipe, wider, sick=False, culprits=["?"])
    assert (one.name, one.kind, one.sick) == ("mlp/other", "mlp", False)
    made = one.make(Draw(0, Length.SHORT))
    assert made.steps == 60
    assert made.culprits == ("0", "1")
    assert made.optimizer.param_groups[0]["params"] == list(made.model.parameters())


def test_the_hook_after_each_step_is_called() -> None:
    steps: list[int] = []
    train(plain(after=partial(list.append, steps)), [])
    assert steps == list(range(12))
