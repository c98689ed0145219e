"""Each piece of a family does to a training what it says."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo import changes
from gradwatch.zoo.recipes.tabular import classifier, plain_descent, two_towers
from gradwatch.zoo.training import Change, Draw, Length, Make, Training, family, train


def changed(
    *pieces: Change, recipe: Make = plain_descent, length: Length = Length.DEFAULT
) -> Training:
    torch.manual_seed(0)
    return family("x", "y", ".", recipe, *pieces).make(Draw(0, length))


def given(training: Training) -> set[str]:
    have = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    return {name for name, p in training.model.named_parameters() if id(p) in have}


def test_rates_and_groups() -> None:
    rate = changed().optimizer.param_groups[0]["lr"]
    assert changed(changes.rate_times(10.0)).optimizer.param_groups[0]["lr"] == pytest.approx(
        10 * rate
    )
    drawn = changed(changes.rate_times(2.0, 3.0)).optimizer.param_groups[0]["lr"]
    assert 2 * rate <= drawn <= 3 * rate
    group = changed(changes.each_group(momentum=0.5), changes.weight_decay(0.2)).optimizer
    assert (group.param_groups[0]["momentum"], group.param_groups[0]["weight_decay"]) == (0.5, 0.2)
    apart = changed(changes.rate_of("5", 4.0)).optimizer.param_groups
    assert [len(g["params"]) for g in apart] == [4, 2]
    assert apart[1]["lr"] == pytest.approx(4 * apart[0]["lr"])


def test_what_the_optimizer_gets() -> None:
    everything = given(changed())
    assert len(everything) == 6
    assert given(changed(changes.leave_out("5"))) == everything - {"5.weight", "5.bias"}
    assert given(changed(changes.foreign())) == set()
    assert given(changed(changes.freeze("0.*"))) == everything - {"0.weight", "0.bias"}
    handed = changed(changes.freeze("0.*"), changes.optimizer_over_all(Adam, lr=0.1))
    assert given(handed) == everything
    assert isinstance(changed(changes.optimizer(Adam, lr=0.1)).optimizer, Adam)
    new_layer = changed(changes.replace_module("5", lambda m: nn.Linear(m.in_features, 1)))
    assert given(new_layer) == everything


def test_a_second_optimizer_steps_or_not() -> None:
    for silent in (True, False):
        made = changed(changes.second_optimizer("thing.*", silent=silent), recipe=two_towers)
        assert len(made.optimizers) == 2
        assert not any(name.startswith("thing") for name in given(made))
        assert made.silent == (frozenset({1}) if silent else frozenset())
    made = changed(changes.no_step())
    weights = [p.detach().clone() for p in made.model.parameters()]
    made.steps = 3
    train(made, [])
    assert all(map(torch.equal, weights, made.model.parameters()))


def test_weights() -> None:
    plain = changed().model.get_parameter("0.weight")
    scaled = changed(changes.scale_weights("0.weight", 7.0)).model.get_parameter("0.weight")
    assert torch.allclose(scaled, 7 * plain)
    dead = changed(changes.rows("0.bias", 0.25, -9.0)).model.get_parameter("0.bias")
    assert int((dead == -9).sum()) == len(dead) // 4
    cut = changed(changes.follow("0", changes.Cut))
    cut.loss_of(*cut.take()).backward()
    assert cut.model.get_parameter("0.0.weight").grad is None
    assert {m.p for m in changed(changes.dropout(0.9), recipe=classifier).model.modules()
            if isinstance(m, nn.Dropout)} == {0.9}  # fmt: skip


def test_weights_set_anew_in_the_middle() -> None:
    made = changed(changes.overwrite("0.weight", 0.5, nn.init.zeros_), length=Length.SHORT)
    seen: list[float] = []
    overwrite, weight = made.after, made.model.get_parameter("0.weight")
    assert overwrite is not None

    def after(step: int) -> None:
        overwrite(step)
        seen.append(float(weight.detach().norm()))

    made.after = after
    train(made, [])
    assert [step for step, norm in enumerate(seen) if norm == 0] == [30]


def test_data() -> None:
    clean = changed().task.sample(64, torch.Generator().manual_seed(0))
    noisy = changed(changes.label_noise(0.5))
    assert noisy.alter is not None
    _, untouched = noisy.alter(-1, *clean)
    assert torch.equal(untouched, clean[1])
    _, wrong = noisy.alter(0, *clean)
    assert 0.4 <= float((wrong != clean[1]).float().mean()) <= 0.5
    both = changed(changes.inputs(lambda x: 2 * x), changes.targets_times(3.0))
    assert both.alter is not None
    x, y = both.alter(0, *clean)
    assert torch.equal(x, 2 * clean[0])
    assert torch.equal(y, 3 * clean[1])
    assert both.task.chance == pytest.approx(9 * changed().task.chance)
    by_class = changed(changes.fixed_set(60, shuffle=False, by_class=True), recipe=classifier)
    assert by_class.dataset is not None
    labels = by_class.dataset[1]
    assert torch.equal(labels, labels.sort().values)
    twice = changed(changes.duplicate_batches(2), changes.batch(3))
    assert torch.equal(twice.take()[0], twice.take()[0])
    assert twice.batch == 3


def test_the_loop() -> None:
    made = changed(
        changes.schedule(lambda share: 1 - share), changes.clip(0.1), changes.eval_mode(),
        changes.steps(500), changes.loss_times(-1.0), changes.known_levels(floor=0.4),
    )  # fmt: skip
    assert (made.clip, made.train_mode, made.steps, made.task.floor) == (0.1, False, 500, 0.4)
    before = changed()
    assert made.schedule is not None
    assert made.schedule(before.steps // 2) == pytest.approx(0.5)
    batch = before.take()
    assert torch.equal(made.loss_of(*batch), -before.loss_of(*batch))
    assert changed(changes.steps(500), length=Length.SHORT).steps == 60


def test_an_average_is_kept_beside_the_model() -> None:
    made = changed(changes.averaged(), changes.optimizer(SGD, lr=0.1), length=Length.SHORT)
    plain = changed(changes.optimizer(SGD, lr=0.1), length=Length.SHORT)
    for training in (made, plain):
        torch.manual_seed(5)
        train(training, [])
    assert all(map(torch.equal, made.model.parameters(), plain.model.parameters()))


@pytest.mark.parametrize(
    "piece", [changes.scale_weights("nobody", 2.0), changes.replace_module("nobody", lambda m: m)]
)
def test_a_name_that_fits_nothing_is_an_error(piece: Change) -> None:
    with pytest.raises(LookupError, match="nobody"):
        changed(piece)


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="clipp"):
        changed(changes.set_field(clipp=1.0))
