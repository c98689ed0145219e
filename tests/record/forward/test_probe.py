"""The probe names the module that makes the first NaN; modes are known on every step."""

import gc
import weakref

import pytest
import torch
from tests.record.forward.driving import EVERYTHING, ONLY_PROBE, Divide, Driven, hook_count
from torch import Tensor, nn

from gradwatch.record.forward import ForwardHook
from gradwatch.record.options import Record
from gradwatch.record.parameters import Networks
from gradwatch.run import EventKind
from gradwatch.stats import Family, State

torch.set_num_threads(1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), Divide(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    )


def broken() -> nn.Sequential:
    model = net()
    with torch.no_grad():
        model[1].bias.fill_(-100.0)  # no entry is positive any more
    return model


def squared(data: Tensor):  # type: ignore[no-untyped-def]
    return lambda model: model(data).pow(2).mean()


def test_the_module_that_makes_the_nan_has_finite_input() -> None:
    driven = Driven(broken())
    (rows,) = driven.train(squared(torch.randn(16, 6)), Family.PROBE, due=ONLY_PROBE)
    assert list(rows) == ["2", "3", "5"]
    assert rows["2"]["probe_nonfinite"] == 16 * 8
    assert rows["2"]["probe_input_nonfinite"] == 0
    assert rows["3"]["probe_input_nonfinite"] == 16 * 8


def test_every_micro_batch_is_looked_at() -> None:
    driven = Driven(net())
    driven.arm(ONLY_PROBE)
    for batch in range(4):
        with torch.no_grad():
            driven.model[1].bias.fill_(-100.0 if batch == 2 else 0.0)  # type: ignore[index]
        driven.model(torch.randn(16, 6)).sum().backward()
        driven.forward.backward()
    assert list(driven.rows(driven.collect(), Family.PROBE)) == ["2", "3", "5"]


def test_hits_of_a_step_that_the_scaler_skips_are_told() -> None:
    driven = Driven(broken())
    driven.arm(ONLY_PROBE)
    driven.model(torch.randn(16, 6)).sum().backward()
    driven.forward.backward()
    with torch.no_grad():
        driven.model[1].bias.fill_(0.0)  # type: ignore[index]
    driven.model(torch.randn(16, 6))  # of the step after it
    assert list(driven.rows(driven.collect(skipped=True), Family.PROBE)) == ["2", "3", "5"]
    assert driven.rows(driven.collect(), Family.PROBE) == {}


def test_a_healthy_step_between_recorded_ones_gives_no_row() -> None:
    driven = Driven(net())
    assert driven.train(squared(torch.randn(16, 6)), Family.PROBE, due=ONLY_PROBE) == [{}]


def test_a_full_step_gives_a_row_for_every_probed_layer() -> None:
    driven = Driven(net())
    (rows,) = driven.train(squared(torch.randn(16, 6)), Family.PROBE)
    assert list(rows) == ["0", "1", "2", "3", "5"]  # a ReLU makes no NaN of its own
    assert all(row["probe_nonfinite"] == 0 and row["probe_training"] == 1 for row in rows.values())
    assert rows["3"]["subject"].order == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_and_layouts(dtype: torch.dtype) -> None:
    class Crosswise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.t()

    model = nn.Sequential(nn.Linear(6, 4).to(dtype), Crosswise(), Divide())
    data = torch.full((5, 6), -1.0, dtype=dtype)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(float("inf"))
    driven = Driven(model)
    (rows,) = driven.train(squared(data), Family.PROBE, due=ONLY_PROBE)
    assert {name: row["probe_nonfinite"] for name, row in rows.items()} == dict.fromkeys(
        ("0", "1", "2"), 20
    )


def test_what_a_layer_is_given_by_name_or_in_whole_numbers_is_looked_at() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.last = nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.last(input=self.embed(input=ids))
            return out

    model = Model()
    with torch.no_grad():
        model.embed.weight.fill_(float("nan"))
    driven = Driven(model)
    (rows,) = driven.train(squared(torch.tensor([1, 2])), Family.PROBE, due=ONLY_PROBE)
    assert (rows["embed"]["probe_input_nonfinite"], rows["last"]["probe_input_nonfinite"]) == (0, 8)


# -- the hook --------------------------------------------------------------------------------------


def test_nothing_is_called_where_nothing_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = ForwardHook.__call__
    monkeypatch.setattr(
        ForwardHook, "__call__", lambda *seen: (calls.append(1), original(*seen))[1]
    )
    model = net()
    driven = Driven(model)
    for step in range(2 * 3):
        driven.arm(EVERYTHING if step % 2 else frozenset(), full=bool(step % 2))
        assert hook_count(model) == step % 2
        calls.clear()
        model(torch.randn(16, 6)).sum().backward()
        assert len(calls) == (7 if step % 2 else 0)  # six layers and the model itself
        driven.collect()
    driven.arm(ONLY_PROBE)
    driven.forward.detach()
    assert hook_count(model) == 0


def test_without_activations_only_the_graph_is_looked_for() -> None:
    model = net()
    driven = Driven(model, frozenset({Record.GRADIENTS}))
    due = frozenset({Family.GRAD, Family.GROUP})
    (rows,) = driven.train(squared(torch.randn(16, 6)), Family.PROBE, due=due)
    assert rows == {}
    assert driven.forward.graph is not None
    driven.forward.detach()


def test_the_hook_keeps_neither_the_model_nor_us_alive() -> None:
    driven = Driven(net())
    driven.arm()
    model, forward = weakref.ref(driven.model), weakref.ref(driven.forward)
    del driven
    gc.collect()
    assert model() is None
    assert forward() is None
    nn.Linear(1, 1)(torch.ones(1))  # what is left of the hook does nothing
    assert hook_count() == 1  # whoever lets a watcher go detaches it


def test_a_failure_inside_is_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("gradwatch.record.looking.nonfinite", fails)
    driven = Driven(broken())
    assert driven.train(squared(torch.randn(2, 6)), Family.PROBE, steps=4) == [{}] * 4
    assert len(caplog.records) == 1
    assert "planted" in caplog.text
    (event,) = driven.kept.events
    assert event.kind is EventKind.SWITCHED_OFF
    assert hook_count(driven.model) == 0


# -- modes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_the_mode_is_known_on_every_recorded_step(several: bool) -> None:
    parts = nn.Linear(4, 4), nn.Linear(4, 4)
    model = Networks({"a": parts[0], "b": parts[1]}) if several else nn.Sequential(*parts)
    driven = Driven(model, frozenset({Record.GRADIENTS}))
    found = []
    for step in range(4):
        driven.arm(frozenset({Family.GRAD}), full=step == 0)
        for part in parts if several else (model,):
            part.train(step != 2)
        found.append(driven.collect().scalars["training_mode"])
    assert found == [1.0, 1.0, 0.0, 1.0]
    driven.forward.detach()


def test_norm_layers_are_found_by_their_class_also_without_a_forward() -> None:
    driven = Driven(net())
    driven.arm()
    driven.model.eval()
    rows = driven.rows(driven.collect(), Family.PROBE)
    assert rows["1"]["probe_training"] == 0
    driven.forward.detach()


def test_dropout_layers_of_trained_parts_have_a_mode() -> None:
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(4, 4), nn.Dropout(0.2), nn.Dropout(0.0))
    model[2].eval()
    driven = Driven(model)
    (seen,) = driven.train(lambda model: model(torch.randn(3, 4)).sum(), Family.PROBE)
    assert "0.1" not in seen  # rests on purpose
    assert "3" not in seen  # drops nothing
    assert seen["2"]["probe_training"] == 0
    assert seen["1"]["probe_training"] == 1
    assert all(row["state"] == State.MEASURED for row in seen.values())
    driven.forward.detach()
