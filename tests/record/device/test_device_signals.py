"""Signals on an accelerator, done here on the CPU: as recorded there, held against the CPU's."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.record.device.imitated_signals import Gpt
from tests.record.device.pretending import pretend_on_device
from tests.record.signals.driving import Divide
from tests.record.sinks import MemorySink, watch_into
from torch import Tensor, nn

from gradwatch.diagnosis import diagnose
from gradwatch.record import Watcher, watch
from gradwatch.record.signals import make_signals
from gradwatch.record.signals.probe import DeviceProbe
from gradwatch.run import EventKind
from gradwatch.stats import Family, State
from gradwatch.store import open_run

STEPS = 6


class Net(nn.Module):
    """Every gate we know; from step `sick_from` on, `divide` divides by zero."""

    def __init__(self, sick_from: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.relu, self.divide = nn.ReLU(), Divide()
        self.shared = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)
        self.sick_from, self.calls = sick_from, 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        if self.sick_from is not None and self.calls >= self.sick_from:
            h = h - 100
        self.calls += 1
        h = self.shared(self.divide(h))
        h = F.relu(self.shared(torch.tanh(30 * h)))
        return self.last(self.relu(torch.sigmoid(4 * h) - 0.55))


def trained(
    model: nn.Module,
    *,
    every: int | None = 1,
    steps: int = STEPS,
    scale: float = 1.0,
    during: Callable[[int, nn.Module], None] | None = None,
) -> tuple[MemorySink, Watcher]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    sink = MemorySink()
    names = [name for name, _ in model.named_parameters()]
    watcher = watch_into(
        sink,
        model,
        optimizer,
        every=every,
        budget=1.0,
        signals=make_signals(model, names, {"activations"}),
    )
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        if during is not None:
            during(step, model)
        optimizer.zero_grad()
        x = scale * torch.randn(8, 6, generator=generator)
        F.cross_entropy(model(x), torch.arange(8) % 4).backward()
        optimizer.step()
    watcher.close()
    assert watcher.guard.error is None
    assert EventKind.SWITCHED_OFF not in sink.kinds()
    return sink, watcher


def both(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module], **options: Any
) -> tuple[MemorySink, MemorySink]:
    """The same training recorded near and far."""
    torch.set_num_threads(1)
    near, _ = trained(make(), **options)
    pretend_on_device(monkeypatch)
    far, _ = trained(make(), **options)
    return near, far


def of(sink: MemorySink, family: Family) -> dict[tuple[int, str], tuple[np.void, State]]:
    return {(step, name): row for (kind, step, name), row in sink.rows.items() if kind is family}


@pytest.mark.parametrize("sick_from", [None, 3])
def test_activations_and_gates_are_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, sick_from: int | None
) -> None:
    near, far = (of(sink, Family.ACT) for sink in both(monkeypatch, lambda: Net(sick_from)))
    assert near.keys() == far.keys()
    assert len(near) >= STEPS * 6
    for key, (row, state) in near.items():
        found, far_state = far[key]
        assert far_state is state is State.MEASURED
        for name in row.dtype.names:
            assert found[name] == pytest.approx(row[name], rel=1e-5, abs=1e-7, nan_ok=True), (
                key,
                name,
            )
    gates = far[0, "shared"][0]
    assert 0 < gates["act_gate_zero_fraction"] < 1
    assert 0 < gates["act_flat_fraction"] < 1


@pytest.mark.parametrize("every", [1, None])
def test_the_module_that_makes_the_nan_is_named(
    monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    near, far = both(monkeypatch, lambda: Net(12), steps=14, every=every)
    expected, found = of(near, Family.PROBE), of(far, Family.PROBE)
    assert expected.keys() == found.keys()
    for key, (row, state) in found.items():
        other, _ = expected[key]
        assert state is State.SAMPLED
        assert row["probe_nonfinite"] == (other["probe_nonfinite"] > 0), key
        assert row["probe_input_nonfinite"] == (other["probe_input_nonfinite"] > 0), key
        assert row["probe_training"] == other["probe_training"]
    bad = [key for key, (row, _) in found.items() if row["probe_nonfinite"]]
    producers = [key for key in bad if not found[key][0]["probe_input_nonfinite"]]
    assert producers == [(12, "divide"), (13, "divide")]
    assert {name for step, name in bad if step == 12} == {"divide", "shared", "last"}
    if every is None:
        # Between the recorded steps only layers with something to say have a row.
        assert {name for step, name in found if step == 11} == set()


def test_modes_of_the_step_and_not_of_the_arrival(on_device: None) -> None:
    def change(step: int, model: nn.Module) -> None:
        model.train(step != 2)

    sink, _ = trained(Net(), during=change)
    modes = [sink.rows[Family.PROBE, step, "norm"][0]["probe_training"] for step in range(STEPS)]
    assert modes == [1, 1, 0, 1, 1, 1]


def test_nothing_is_written_before_it_has_arrived(on_device: None) -> None:
    seen: list[int] = []
    model = Net()

    def look(step: int, model: nn.Module) -> None:
        seen.append(len([key for key in sinks[0].rows if key[0] is Family.PROBE]))

    sinks: list[MemorySink] = []
    original = MemorySink.__init__

    def keep(self: MemorySink) -> None:
        original(self)
        sinks.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySink, "__init__", keep)
        trained(model, during=look)
    assert seen[:3] == [0, 0, 0]
    assert seen[-1] > 0


def test_scale_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = both(monkeypatch, Net, scale=3.0)
    for step in range(STEPS):
        for name in ("input_rms", "input_abs_max", "input_nonfinite"):
            expected = near.logged[step][name]
            assert far.logged[step][name] == pytest.approx(expected, rel=1e-6), name


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, *rest: Any, **more: Any) -> Tensor:
        return self.weight * x.float().nan_to_num(0, 0, 0).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_inputs_that_are_not_finite(on_device: None, dtype: torch.dtype) -> None:
    data = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    data[3, :5], data[7, 7] = float("nan"), float("inf")
    more = torch.full((10,), 200.0).to(dtype)
    model = Takes()
    sink = MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch_into(
        sink, model, optimizer, signals=make_signals(model, ["weight"], {"activations"})
    )
    with torch.no_grad():
        model(torch.full((3,), 1e9))  # validation does not count
    model(data, [torch.arange(3)], more=more).backward()
    optimizer.step()
    watcher.close()
    assert sink.logged[0]["input_nonfinite"] == 6
    finite = torch.cat([data[data.isfinite()].double(), more.double()])
    assert sink.logged[0]["input_rms"] == pytest.approx(float(finite.square().mean().sqrt()), 1e-6)
    assert sink.logged[0]["input_abs_max"] == 200.0


def hits_of(probe: DeviceProbe) -> dict[int, tuple[int, int]]:
    _, parts, hits = probe.take()
    return hits([part.numpy() for part in parts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), float("-inf")])
def test_large_finite_numbers_raise_no_alarm(
    on_device: None, dtype: torch.dtype, bad: float | None
) -> None:
    output = torch.full((128, 128), torch.finfo(dtype).max, dtype=dtype)
    output[::2] *= -1
    if bad is not None:
        output[17] = bad
    probe = DeviceProbe()
    probe.look(1, output, torch.ones(4), None)
    assert hits_of(probe) == ({} if bad is None else {1: (1, 0)})


def test_a_layer_called_twice_does_not_forget_its_first_call(on_device: None) -> None:
    probe = DeviceProbe()
    probe.look(0, torch.tensor([float("nan")]), torch.ones(2), None)
    probe.look(0, torch.ones(2), torch.tensor([float("inf")]), None)
    assert hits_of(probe) == {0: (1, 1)}
    probe.look(0, torch.ones(2), torch.ones(2), None)
    assert hits_of(probe) == {}


def test_a_forward_without_a_backward_is_dropped(on_device: None) -> None:
    def validate(step: int, model: nn.Module) -> None:
        model(torch.full((8, 6), 1e4))

    sink, _ = trained(Net(), during=validate)
    assert sink.rows[Family.ACT, 3, "first"][0]["act_abs_max"] < 100


def test_a_large_output_is_sampled_and_says_so(
    on_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.record.signals.activations.DEVICE_MOST", 64)
    sink, _ = trained(Net())
    row, state = sink.rows[Family.ACT, 0, "first"]
    assert state is State.SAMPLED
    assert row["act_count"] == 8 * 16
    _, state = sink.rows[Family.ACT, 0, "last"]
    assert state is State.MEASURED


def test_the_diagnosis_names_the_layer_of_the_first_nan(on_device: None, tmp_path: Path) -> None:
    model = Net(sick_from=21)  # no step of the slower cadences
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch(model, optimizer, run=tmp_path / "run", budget=1.0)
    for step in range(24):
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = F.cross_entropy(model(x), torch.arange(8) % 4)
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
    watcher.close()
    found = diagnose(open_run(tmp_path / "run")).findings
    (finding,) = [one for one in found if one.check == "nonfinite"]
    assert (finding.first_step, finding.layers) == (21, ("divide",))


@pytest.mark.parametrize("stays", [True, False])
def test_the_diagnosis_looks_into_the_block_of_the_first_nan(
    on_device: None, tmp_path: Path, stays: bool
) -> None:
    """Where the weights survive it, steps with a look at all layers follow."""
    model = Gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch(model, optimizer, run=tmp_path / "run", budget=1.0)
    for step in range(30):
        kept = [p.detach().clone() for p in model.parameters()]
        model.h[1].sick = step >= 21
        optimizer.zero_grad()
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = F.cross_entropy(model(x), torch.arange(8) % 4)
        loss.backward()
        optimizer.step()
        if stays:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), kept, strict=True):
                    parameter.copy_(value)
        watcher.log(loss=loss)
    watcher.close()
    found = diagnose(open_run(tmp_path / "run")).findings
    finding = next(one for one in found if one.check == "nonfinite")
    assert finding.first_step == 21
    assert finding.layers == (("h.1.divide",) if stays else ("h.1",))


class Bypassed(Gpt):
    """Calls the layers of its blocks, never the blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.wte(x)
        for block in self.h:
            x = type(block).forward(block, x)
        out: Tensor = self.head(self.ln_f(x))
        return out


@pytest.mark.parametrize(("kind", "named"), [(Gpt, "h.1"), (Bypassed, "h.1.divide")])
def test_blocks_that_are_not_called_are_no_blocks(
    on_device: None, kind: type[Gpt], named: str
) -> None:
    def spoil(step: int, model: nn.Module) -> None:
        assert isinstance(model, Gpt)
        model.h[1].sick = step == 13

    sink, _ = trained(kind(), every=None, steps=15, during=spoil)
    found = of(sink, Family.PROBE)
    made = [
        name
        for (step, name), (row, _) in found.items()
        if step == 13 and row["probe_nonfinite"] and not row["probe_input_nonfinite"]
    ]
    assert made == [named]


class Masked(nn.Module):
    """The first row becomes infinite."""

    on = False

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.where(torch.arange(len(x)) == 0, float("inf") if self.on else 0.0, 0.0)
        return x + rows[:, None]


class Halves(nn.ModuleList):
    """Two blocks; the loss leaves the first row out, so that all gradients are finite."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(6, 6), Masked()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return torch.cat([x[1:], x[1:2]])


def test_an_output_alone_makes_the_probe_look_closely(on_device: None) -> None:
    def spoil(step: int, model: nn.Module) -> None:
        assert isinstance(model, Halves)
        model[1][1].on = step >= 12

    sink, _ = trained(Halves(), every=None, steps=16, during=spoil)
    bad = [key for key, (row, _) in of(sink, Family.PROBE).items() if row["probe_nonfinite"]]
    assert bad[0] == (12, "1")
    assert bad[-1] == (15, "1.1")


# -- counted on the imitated device --------------------------------------------------------------

BLOCKS, LAYERS = 3, 3 * 6 + 3
SENT = 2
"""Launches for the transfer: one that joins the numbers, one that copies them."""


@pytest.fixture(scope="module")
def imitated() -> Any:
    command = [sys.executable, "-m", "tests.record.device.imitated_signals"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_one_micro_batch_of_a_step_is_looked_at(imitated: Any) -> None:
    found = imitated["micro-batches"]
    assert found["one"] == found["four"]
    assert found["one, blocks"] == found["four, blocks"]
    assert found["one"][1] > 2 * LAYERS + 8 * LAYERS


def test_between_full_steps_blocks_are_looked_at(imitated: Any) -> None:
    full, survey, *rest = imitated["micro-batches"]["one, blocks"]
    assert full > survey == 2 * LAYERS + SENT
    assert set(rest) == {2 * (BLOCKS + 3) + SENT}
    two, six = imitated["depths"]["2"], imitated["depths"]["6"]
    assert six[2] - two[2] == 2 * 4


def test_layers_are_looked_at_after_a_hit_in_their_block(imitated: Any) -> None:
    (first, *later) = imitated["hits"]["from 37 on"]
    assert first == [37, "h.1", True]
    steps = [step for step, _, _ in later]
    assert steps[0] <= 40
    assert later == [
        [step, name, name == "h.1.divide"]
        for step in range(steps[0], 42)
        for name in ("h.1.divide", "h.1.proj")
    ]
    assert imitated["hits"]["once"] == [[37, "h.1", True]]


def test_a_nan_in_a_later_micro_batch_is_found_by_its_gradients(imitated: Any) -> None:
    found = imitated["hits"]["third micro-batch"]
    assert 37 < found[0][0] <= 40
    assert found[0][1:] == ["h.1.divide", True]
    on_cpu = imitated["hits"]["third micro-batch, on the CPU"]
    assert on_cpu[0] == [37, "h.1.divide", True]


def test_what_comes_after_the_most_launches_waits_for_the_next_step(imitated: Any) -> None:
    found = imitated["limited"]
    # Forty of each signal, and what is sent.
    assert max(found["launches"]) <= 2 * 40 + 3
    assert [len(names) for names in found["probed"]] == [20, 20, 20]
    assert found["not probed"] == [["head"], ["ln_f"], ["head"]]
    for there, missing in zip(found["activations"], found["no activations"], strict=True):
        assert there
        assert len(there) + len(missing) == LAYERS
    assert {name for step in found["activations"] for name in step} == set(
        found["activations"][0] + found["no activations"][0]
    )


def test_an_engine_looks_once_at_each_output(imitated: Any) -> None:
    assert imitated["one launch"] == {"calls": LAYERS, "rows": LAYERS, "whole": True}


def test_a_slow_device_stretches_the_cadence(imitated: Any) -> None:
    slow, quick = imitated["slow"], imitated["quick"]
    assert slow["k"] >= 16
    assert quick["k"] == 1
    assert "cadence stretched" in slow["events"]
    assert "cadence stretched" not in quick["events"]


def test_the_overhead_is_the_larger_of_host_and_device(imitated: Any) -> None:
    slow, quick = imitated["slow"], imitated["quick"]
    assert "device_seconds" not in quick
    assert quick["spent"] < quick["wall"]
    # A tenth of a second per launch; the user's own launches are not ours.
    ours = sum(slow["launches"]) - len(slow["launches"]) * min(slow["launches"])
    assert slow["device_seconds"] == pytest.approx(0.1 * ours, rel=0.1)
    assert slow["spent"] == pytest.approx(slow["device_seconds"], rel=0.05)
    assert slow["overhead"] == pytest.approx(slow["spent"] / slow["wall"], rel=0.01)


def test_nothing_is_done_while_a_cuda_graph_is_captured(imitated: Any) -> None:
    found = imitated["captured"]
    assert found["ours"][2:4] == [0, 0]
    assert found["questions"][2:4] == [0, 0]
    assert min(found["ours"][1], *found["ours"][4:]) > 500
    assert found["steps"] == [33, 34, 35, 36]  # a capture is no step
