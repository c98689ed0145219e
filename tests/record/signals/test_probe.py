"""The probe names the module that makes the first NaN; modes and inputs are read on every step."""

import numpy as np
import pytest
import torch
from tests.record.signals.driving import EVERYTHING, ONLY_PROBE, collected, drive, hook_count
from torch import Tensor, nn

from gradwatch.record.signals import Inputs, Probe, Stage
from gradwatch.record.signals.reading import nonfinite
from gradwatch.run import EventKind

torch.set_num_threads(1)


class Divide(nn.Module):
    """Divides by the number of positive entries: NaN for a row without any."""

    def forward(self, x: Tensor) -> Tensor:
        kept = x.relu()
        return kept / (kept > 0).sum(-1, keepdim=True)


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


def test_a_healthy_step_between_recorded_ones_gives_no_row() -> None:
    model = net()
    assert drive(Probe(model), model, squared(torch.randn(16, 6)), due=ONLY_PROBE) == [{}]


def test_a_recorded_step_gives_a_row_for_every_probed_layer() -> None:
    model = net()
    instrument = Probe(model, stage=Stage(order={"0": 0, "3": 7}))
    (rows,) = drive(instrument, model, squared(torch.randn(16, 6)))
    assert list(rows) == ["0", "1", "2", "3", "5"]  # a ReLU makes no NaN of its own
    assert all(row["probe_nonfinite"] == 0 and row["probe_training"] == 1 for row in rows.values())
    assert rows["3"]["subject"].order == 7


def test_without_being_asked_it_hooks_nothing() -> None:
    model = net()
    instrument = Probe(model)
    instrument.attach()
    instrument.arm(0, ONLY_PROBE)
    assert hook_count(model.modules()) == 5
    instrument.arm(1, frozenset())
    assert hook_count(model.modules()) == 0
    instrument.arm(2, ONLY_PROBE)
    instrument.detach()
    assert hook_count(model.modules()) == 0


def test_a_change_of_mode_is_an_event_and_a_row() -> None:
    model = net()
    instrument = Probe(model)

    def change(step: int) -> None:
        model.train(step != 1)

    first, second, third = drive(
        instrument, model, squared(torch.randn(16, 6)), steps=3, due=ONLY_PROBE, before=change
    )
    assert first == {}
    assert second["1"]["probe_training"] == 0
    assert third["1"]["probe_training"] == 1
    went, came = instrument.events()
    assert (went.kind, went.step, went.data["training"]) == (EventKind.MODE_CHANGED, 1, False)
    assert (came.step, came.data["layers"]) == (2, ["1"])


def test_norm_layers_are_found_by_their_class_also_without_a_forward() -> None:
    model = net()
    instrument = Probe(model)
    instrument.attach()
    instrument.arm(0, EVERYTHING)
    model.eval()
    rows = collected(instrument, 0)
    assert rows["1"]["probe_training"] == 0
    assert len(instrument.events()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_counts_of_non_finite_elements(dtype: torch.dtype, bad: float) -> None:
    largest = torch.finfo(dtype).max
    tensor = torch.full((50, 60), largest, dtype=dtype)
    assert nonfinite(tensor) == 0  # no overflow of a sum is taken for one
    tensor[::7, 3] = bad
    assert nonfinite(tensor) == 8
    assert nonfinite(tensor.t()) == 8
    assert nonfinite(tensor[:, 2:5]) == 8


def test_a_large_tensor_is_sampled_over_its_whole_width() -> None:
    tensor = torch.zeros(1000, 512)
    tensor[17] = float("nan")  # one sample of a batch
    found = nonfinite(tensor)
    assert 0 < found <= 4096
    assert nonfinite(tensor, whole=True) == 512
    channels_last = torch.zeros(8, 64, 16, 16).to(memory_format=torch.channels_last)
    channels_last[3] = float("inf")
    assert nonfinite(channels_last) > 0


# -- inputs ----------------------------------------------------------------------------------------


def scalars_of(model: nn.Module, *args: object, **kwargs: object) -> dict[str, float]:
    instrument = Inputs(model)
    instrument.attach()
    instrument.arm(0, ONLY_PROBE)
    model(*args, **kwargs)
    found = instrument.scalars(0)
    instrument.detach()
    assert hook_count(model.modules()) == 0
    return found


class Takes(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> int:
        return 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scale_of_the_inputs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(40, 30).to(dtype), (300 * torch.randn(20)).to(dtype)
    found = scalars_of(Takes(), [a, {"ids": torch.arange(5)}], mask=None, more=b)
    both = torch.cat([a.double().flatten(), b.double()]).numpy()
    assert found["input_rms"] == pytest.approx(np.sqrt(np.mean(both**2)), rel=1e-5)
    assert found["input_abs_max"] == pytest.approx(np.abs(both).max())
    assert found["input_nonfinite"] == 0


def test_nan_in_the_inputs() -> None:
    data = torch.randn(40, 30)
    data[3, :5] = float("nan")
    data[7, 7] = float("inf")
    found = scalars_of(Takes(), data)
    finite = data[data.isfinite()].double()
    assert found["input_nonfinite"] == 6
    assert found["input_rms"] == pytest.approx(float(finite.pow(2).mean().sqrt()), rel=1e-6)


def test_numbers_whose_squares_overflow() -> None:
    found = scalars_of(Takes(), torch.full((10,), 1e30))
    assert found == {
        "input_rms": pytest.approx(1e30),
        "input_abs_max": pytest.approx(1e30),
        "input_nonfinite": 0,
    }


def test_a_large_input_is_sampled_evenly() -> None:
    torch.manual_seed(0)
    found = scalars_of(Takes(), 5 * torch.randn(300_000))
    assert found["input_rms"] == pytest.approx(5, rel=0.05)


def test_validation_does_not_count() -> None:
    with torch.no_grad():
        assert scalars_of(Takes(), torch.ones(3)) == {}
    assert scalars_of(Takes(), torch.arange(3)) == {}


def test_a_step_that_is_not_recorded_has_no_hook() -> None:
    model = Takes()
    instrument = Inputs(model)
    instrument.arm(0, ONLY_PROBE)
    assert hook_count([model]) == 1
    instrument.arm(1, frozenset())
    assert hook_count([model]) == 0
