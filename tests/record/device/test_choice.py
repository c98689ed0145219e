"""Which engine measures: forced ones, trust by proof, and every reason to fall back."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import gradwatch
from gradwatch.errors import GradwatchError
from gradwatch.record.device import choice
from gradwatch.record.device.engine import DeviceMeasurement, Engine, Places, Sent, Wanted
from gradwatch.record.device.torch_engine import TorchEngine

CPU = torch.device("cpu")
TENSORS = [torch.randn(5, 7), torch.randn(3)]
PLACES = Places(np.arange(2, dtype=np.uint64), np.zeros(2, np.int64), np.array([35, 3]))


class Good(TorchEngine):
    name = "triton"


class Wrong(Good):
    """A planted fault: means are off by a thousandth of the width."""

    def measure(self, tensors, places: Places, wanted: Wanted) -> Sent[DeviceMeasurement]:
        sent = super().measure(tensors, places, wanted)

        def finish(arrived):
            measured = sent.finish(arrived)
            measured.records["mean"] += 1e-3 * np.nan_to_num(measured.records["std"])
            return measured

        return Sent(sent.parts, finish)


@pytest.fixture
def said() -> list[tuple[str, str]]:
    return []


@pytest.fixture(autouse=True)
def triton_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the CPU were a device that Triton compiles for."""
    monkeypatch.setattr(choice, "DEVICES", ("cpu",))
    monkeypatch.setattr(choice, "hindrance", lambda device: "")
    monkeypatch.setattr(choice, "warm_up", lambda device, dtypes: None)
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    choice.forget_trials()
    yield
    choice.forget_trials()


def use(monkeypatch: pytest.MonkeyPatch, kind: type[Engine]) -> None:
    monkeypatch.setattr(choice, "triton_engine", lambda fallback: kind(CPU))


def measure(engine: Engine, times: int = 1) -> None:
    for _ in range(times):
        engine.measure(TENSORS, PLACES, Wanted())


def chosen(said: list[tuple[str, str]]) -> choice.ChosenEngine:
    return choice.ChosenEngine(CPU, lambda device, name, why: said.append((name, why)))


def wait_for_compilers() -> None:
    for thread in threading.enumerate():
        if thread.name == "gradwatch compiles":
            thread.join()


def test_an_engine_that_proves_itself_takes_over_once(monkeypatch, said) -> None:
    use(monkeypatch, Good)
    engine = chosen(said)
    measure(engine)
    wait_for_compilers()
    measure(engine, 3)
    assert said in ([("torch", ""), ("triton", "")], [("triton", "")])


def test_a_wrong_number_is_found_and_told(monkeypatch, said) -> None:
    use(monkeypatch, Wrong)
    engine = chosen(said)
    measure(engine)
    wait_for_compilers()
    measure(engine, 3)
    name, why = said[-1]
    assert name == "torch"
    assert "differ from the CPU's" in why
    assert "float32 mean" in why


def test_while_kernels_compile_torch_measures_and_nobody_waits(monkeypatch, said) -> None:
    use(monkeypatch, Good)
    go_on = threading.Event()
    monkeypatch.setattr(choice, "warm_up", lambda device, dtypes: go_on.wait(30))
    engine = chosen(said)
    measure(engine, 5)
    assert said == [("torch", "")]
    go_on.set()
    wait_for_compilers()
    measure(engine)
    assert said[-1] == ("triton", "")


def test_a_compile_error_is_told(monkeypatch, said) -> None:
    def fails(device: torch.device, dtypes: object) -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(choice, "warm_up", fails)
    engine = chosen(said)
    measure(engine)
    wait_for_compilers()
    measure(engine, 2)
    assert said[-1] == ("torch", "its kernels do not compile (OSError: no compiler)")


def test_what_hinders_is_told_once(monkeypatch, said) -> None:
    monkeypatch.setattr(choice, "hindrance", lambda device: "triton 3.1.0 is older than 3.2")
    measure(chosen(said), 3)
    assert said == [("torch", "triton 3.1.0 is older than 3.2")]


@pytest.mark.parametrize(("version", "old"), [("3.1.0", True), ("2.9", True), ("3.2.0", False)])
def test_old_versions_are_refused(monkeypatch, version: str, old: bool) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "triton", type("module", (), {"__version__": version}))
    why = choice.hindrance(torch.device("cuda"))
    assert ("older" in why) is old


def test_without_triton_it_says_so(monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "triton", None)
    assert choice.hindrance(torch.device("cuda")) == "triton is not installed"


def test_forced_torch_never_tries_triton(monkeypatch, said) -> None:
    monkeypatch.setenv(choice.VARIABLE, "torch")
    monkeypatch.setattr(choice, "warm_up", lambda device, dtypes: pytest.fail("compiles"))
    measure(chosen(said), 2)
    assert said == [("torch", "")]


def test_an_unknown_engine_is_an_error_of_watch(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(choice.VARIABLE, "abacus")
    with pytest.raises(GradwatchError, match="must be triton or torch, got 'abacus'"):
        gradwatch.watch(torch.nn.Linear(2, 2), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_forced_engine_that_cannot_be_had_is_an_error_of_watch(monkeypatch, tmp_path) -> None:
    use(monkeypatch, Wrong)
    monkeypatch.setenv(choice.VARIABLE, "triton")
    with pytest.raises(GradwatchError, match="cannot be had on cpu: its numbers differ"):
        gradwatch.watch(torch.nn.Linear(2, 2), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


FORCED = """
import sys, torch, gradwatch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
with gradwatch.watch(model, optimizer, run=sys.argv[1], every=1):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("engine", ["torch", "triton"])
def test_a_forced_engine_measures_a_training_on_the_cpu(engine: str, tmp_path) -> None:
    if engine == "triton":
        pytest.importorskip("triton")
    runs = {}
    for name in ("", engine):
        path = tmp_path / (name or "kernel")
        env = os.environ | {choice.VARIABLE: name, "TRITON_INTERPRET": "1"}
        subprocess.run([sys.executable, "-c", FORCED, str(path)], check=True, env=env, timeout=300)
        runs[name] = gradwatch.open_run(path)
    plain, forced = runs[""], runs[engine]
    assert forced.info["engines"] == {"cpu": engine}
    assert plain.info["engines"] != forced.info["engines"]
    for stat in ("grad_norm", "weight_std", "update_norm", "optim_ratio_rms"):
        np.testing.assert_allclose(forced.series[stat], plain.series[stat], rtol=1e-5)
