"""The probe names the module that makes the first NaN; modes are read on every step."""

import torch
from tests.record.signals.driving import (
    EVERYTHING,
    ONLY_PROBE,
    Divide,
    collected,
    drive,
    hook_count,
)
from torch import Tensor, nn

from gradwatch.record.signals import ModelContext, Probe
from gradwatch.run import EventKind

torch.set_num_threads(1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), Divide(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    )


def squared(data: Tensor):  # type: ignore[no-untyped-def]
    return lambda model: model(data).pow(2).mean()


def test_the_module_that_makes_the_nan_has_finite_input() -> None:
    model = net()
    with torch.no_grad():
        model[1].bias.fill_(-100.0)  # no entry is positive any more
    (rows,) = drive(Probe(model), model, squared(torch.randn(16, 6)), due=ONLY_PROBE)
    assert list(rows) == ["2", "3", "5"]
    assert rows["2"]["probe_nonfinite"] == 16 * 8
    assert rows["2"]["probe_input_nonfinite"] == 0
    assert rows["3"]["probe_input_nonfinite"] == 16 * 8


def test_on_the_cpu_every_micro_batch_is_looked_at() -> None:
    model = net()
    signal = Probe(model)
    signal.attach()
    signal.arm(0, ONLY_PROBE)
    for batch in range(4):
        with torch.no_grad():
            model[1].bias.fill_(-100.0 if batch == 2 else 0.0)
        model(torch.randn(16, 6)).sum().backward()
        signal.backward()
    assert list(collected(signal, 0)) == ["2", "3", "5"]


def test_a_healthy_step_between_recorded_ones_gives_no_row() -> None:
    model = net()
    assert drive(Probe(model), model, squared(torch.randn(16, 6)), due=ONLY_PROBE) == [{}]


def test_a_recorded_step_gives_a_row_for_every_probed_layer() -> None:
    model = net()
    signal = Probe(model, context=ModelContext(order={"0": 0, "3": 7}))
    (rows,) = drive(signal, model, squared(torch.randn(16, 6)))
    assert list(rows) == ["0", "1", "2", "3", "5"]  # a ReLU makes no NaN of its own
    assert all(row["probe_nonfinite"] == 0 and row["probe_training"] == 1 for row in rows.values())
    assert rows["3"]["subject"].order == 7


def test_without_being_asked_it_hooks_nothing() -> None:
    model = net()
    signal = Probe(model)
    signal.attach()
    signal.arm(0, ONLY_PROBE)
    assert hook_count(model.modules()) == 5
    signal.arm(1, frozenset())
    assert hook_count(model.modules()) == 0
    signal.arm(2, ONLY_PROBE)
    signal.detach()
    assert hook_count(model.modules()) == 0


def test_a_change_of_mode_is_an_event_and_a_row() -> None:
    model = net()
    signal = Probe(model)

    def change(step: int) -> None:
        model.train(step != 1)

    first, second, third = drive(
        signal, model, squared(torch.randn(16, 6)), steps=3, due=ONLY_PROBE, before=change
    )
    assert first == {}
    assert second["1"]["probe_training"] == 0
    assert third["1"]["probe_training"] == 1
    went, came = signal.events()
    assert (went.kind, went.step, went.data["training"]) == (EventKind.MODE_CHANGED, 1, False)
    assert (came.step, came.data["layers"]) == (2, ["1"])


def test_norm_layers_are_found_by_their_class_also_without_a_forward() -> None:
    model = net()
    signal = Probe(model)
    signal.attach()
    signal.arm(0, EVERYTHING)
    model.eval()
    rows = collected(signal, 0)
    assert rows["1"]["probe_training"] == 0
    assert len(signal.events()) == 1


def test_dropout_layers_of_trained_parts_have_a_mode() -> None:
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(4, 4), nn.Dropout(0.2), nn.Dropout(0.0))
    model[2].eval()
    signal = Probe(model)
    (seen,) = drive(signal, model, lambda model: model(torch.randn(3, 4)).sum())
    assert "0.1" not in seen  # rests on purpose
    assert "3" not in seen  # drops nothing
    assert seen["2"]["probe_training"] == 0
    assert seen["1"]["probe_training"] == 1
    signal.detach()
