"""What the Triton engine says of steps and outputs, through the interpreter, against float64 numpy.

Collected by `test_triton_engine.py` in a process of its own, in which TRITON_INTERPRET is set.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.record.device.triton_cases import (
    KINDS,
    NoEngine,
    arrived,
    differences,
    engine,
    made,
    measured,
    normal,
    places_of,
    row_times,
    stepped,
)
from torch import Tensor

from gradwatch import kernel
from gradwatch.record.backend_cpu import pick
from gradwatch.record.device import triton_engine
from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Places,
    Sent,
    Snapshot,
    Wanted,
    joined_output,
)
from gradwatch.record.device.torch_engine import TorchEngine
from gradwatch.record.device.triton_engine import TritonEngine, rehearse
from gradwatch.record.tensors import gather

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
SHAPES = ((37, 50), (1024,), (7,), (5000,), (3, 5))
HALF, FULL, BRAIN = torch.float16, torch.float32, torch.bfloat16
TYPES = [(FULL, FULL, FULL), (BRAIN, BRAIN, BRAIN), (FULL, BRAIN, FULL), (HALF, HALF, HALF)]


class Training:
    """Weights, gradients and second moments of one step."""

    def __init__(self, types: Sequence[torch.dtype] = TYPES[0], scale: float = 1.0) -> None:
        weight, gradient, second = types
        self.weights = [normal(*shape).to(weight) for shape in SHAPES]
        self.gradients = [(normal(*shape) * scale).to(gradient) for shape in SHAPES]
        self.seconds = [(normal(*shape) * scale).square().to(second) for shape in SHAPES]
        for one in self.gradients:
            one.view(-1)[::5] = 0
        self.steps: list[float | Tensor] = [3, 1, 100, 2, 7]
        self.betas = np.full(5, 0.999)
        self.epsilons = np.array([1e-8, 1e-3 * scale, 1e-8, 1e-8, 1e-8])
        if scale == 1.0:
            self.gradients[1][4] = float("inf")
            self.seconds[0][0, 0], self.gradients[0][0, 0] = 0.0, 1.0

    @property
    def divisors(self) -> DeviceDivisors:
        return DeviceDivisors(self.seconds, self.steps, self.betas, self.epsilons)

    def move(self) -> None:
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            old = weight.clone()
            weight -= (1e-3 * gradient.double().clamp(-1, 1)).to(weight.dtype)
            weight.view(-1)[::11] = old.view(-1)[::11]
        self.weights[1][3] = float("nan")


def truth(
    before: Sequence[Tensor], training: Training, *, whole: bool
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    kernel.select("none")

    def some(tensors: Sequence[Tensor]) -> list[Tensor | None]:
        return [tensor if whole else pick(tensor) for tensor in tensors]

    gathered = [gather(some(part)) for part in (before, training.weights, training.gradients)]
    updates, _ = kernel.step(*(part.batch for part in gathered))
    correction = 1 - training.betas ** np.array([float(count) for count in training.steps])
    g, v = gather(training.gradients), gather(training.seconds)
    _, ratios = kernel.step(
        None, None, g.batch, v.batch, correction=correction, eps=training.epsilons
    )
    return updates, ratios


def assert_alike(found: DeviceSteps, updates: NDArray[np.void], ratios: NDArray[np.void]) -> None:
    assert found.updates is not None
    assert found.ratios is not None
    for name in ("changed", "lost", "with_gradient"):
        assert found.updates[name].tolist() == updates[name].tolist(), name
    for name in ("update_norm", "before_norm"):
        np.testing.assert_allclose(found.updates[name], updates[name], rtol=1e-6)
    np.testing.assert_allclose(found.ratios["ratio_rms"], ratios["ratio_rms"], rtol=1e-6)
    np.testing.assert_allclose(found.ratios["eps_fraction"], ratios["eps_fraction"], rtol=1e-9)


def copied(training: Training) -> list[Tensor]:
    return [weight.clone() for weight in training.weights]


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_a_step_is_what_the_cpu_says_it_is(types: Sequence[torch.dtype]) -> None:
    training, some = Training(types), engine(programs=6)
    before, old = some.snapshot(training.weights), copied(training)
    training.move()
    found = stepped(some.step(before, training.weights, training.gradients, training.divisors))
    assert_alike(found, *truth(old, training, whole=True))
    assert found.compared.tolist() == [weight.numel() for weight in old]


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_steps_of_other_sizes(scale: float) -> None:
    training, some = Training(scale=scale), engine()
    before, old = some.snapshot(training.weights), copied(training)
    training.move()
    found = stepped(some.step(before, training.weights, training.gradients, training.divisors))
    assert_alike(found, *truth(old, training, whole=True))


@pytest.mark.parametrize("types", TYPES[:3], ids=str)
def test_of_weights_too_large_to_be_copied_4096_coordinates_are_compared(
    types: Sequence[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_engine, "MOST_MEMORY", 10_000)
    training, some = Training(types), engine(tile=1024)
    before, old = some.snapshot(training.weights), copied(training)
    assert not before.whole
    for copy, weight in zip(before.copies, old, strict=True):
        assert copy is not None
        assert torch.equal(copy, pick(weight).reshape(-1))
    training.move()
    found = stepped(some.step(before, training.weights, training.gradients, training.divisors))
    assert_alike(found, *truth(old, training, whole=False))
    assert found.compared.tolist() == [min(weight.numel(), 4096) for weight in old]


def test_a_copy_has_the_same_bits_and_may_begin_anywhere() -> None:
    base = normal(3000).float()
    base[7] = float("nan")
    weights = [base[1:1500], base[1600:1603], None, base[5:].bfloat16()]
    before = engine().snapshot(weights)
    for copy, weight in zip(before.copies, weights, strict=True):
        assert (copy is None) == (weight is None)
        if copy is not None and weight is not None:
            assert copy.view(torch.uint8).tolist() == weight.view(torch.uint8).tolist()
            assert copy.data_ptr() % 16 == 0


def test_counts_of_steps_may_live_on_the_device() -> None:
    training, some = Training(), engine()
    plain = stepped(some.step(None, training.weights, training.gradients, training.divisors))
    training.steps = [torch.tensor(float(count)) for count in training.steps]
    far = stepped(some.step(None, training.weights, training.gradients, training.divisors))
    assert plain.ratios is not None
    assert far.ratios is not None
    np.testing.assert_allclose(far.ratios["ratio_rms"], plain.ratios["ratio_rms"], rtol=1e-6)
    assert far.updates is None


def test_what_is_missing_is_left_out() -> None:
    training, some = Training(), engine()
    before, old = some.snapshot(training.weights), copied(training)
    training.move()
    gradients: list[Tensor | None] = [*training.gradients]
    seconds: list[Tensor | None] = [*training.seconds]
    gradients[0], seconds[1] = None, None
    after: list[Tensor | None] = [*training.weights]
    after[3], after[2] = None, normal(8).float()  # gone, and another than before
    gradients[3], gradients[2], seconds[2] = None, None, None
    divisors = DeviceDivisors(seconds, training.steps, training.betas, training.epsilons)
    found = stepped(some.step(before, after, gradients, divisors))
    updates, ratios = truth(old, training, whole=True)
    assert found.compared.tolist() == [1850, 1024, 0, 0, 15]
    assert found.updates is not None
    assert found.ratios is not None
    assert found.updates["with_gradient"].tolist()[0] == 0
    assert found.updates["lost"].tolist()[0] == 0
    assert found.updates["changed"].tolist()[:2] == updates["changed"].tolist()[:2]
    assert np.isnan(found.ratios["ratio_rms"]).tolist() == [True, True, True, True, False]
    np.testing.assert_allclose(found.ratios[4].tolist(), ratios[4].tolist(), rtol=1e-6)
    only_updates = stepped(some.step(before, training.weights, training.gradients, None))
    assert only_updates.ratios is None
    assert only_updates.updates is not None
    assert only_updates.updates["lost"].tolist() == updates["lost"].tolist()


@pytest.mark.parametrize("dtype", [FULL, BRAIN, HALF], ids=str)
def test_outputs_of_layers(dtype: torch.dtype) -> None:
    for kind in KINDS:
        tensor = made(kind, (37, 60), dtype)[1:]
        (parts,) = arrived([engine().output(tensor)])
        zeros, bad, top, total, squares = joined_output(parts).tolist()
        x = tensor.double()
        good = x[x.isfinite()]
        assert zeros == float((x == 0).sum())
        assert bad == x.numel() - good.numel()
        assert top == (float(good.abs().max()) if len(good) else 0.0)
        scale = float(good.abs().sum())
        assert total == pytest.approx(float(good.sum()), abs=1e-6 * scale)
        assert squares == pytest.approx(float(good.square().sum()), rel=1e-6)


class Other(NoEngine):
    """Stands in for the engine of torch's operations; notes what it is given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def _note(self, tensors: Sequence[Tensor | None]) -> list[int]:
        self.given.append([i for i, tensor in enumerate(tensors) if tensor is not None])
        return self.given[-1]

    def measure(  # type: ignore[override]
        self, tensors: Sequence[Tensor | None], places: Places, wanted: Wanted
    ) -> Sent[DeviceMeasurement]:
        self._note(tensors)
        if wanted.rows is not None:
            wanted.rows.now += 1
        gathered = gather(tensors)  # holds what is read
        truth = kernel.measure(
            gathered.batch, bins=True, seeds=places.seeds, offsets=places.offsets
        )
        found = DeviceMeasurement(truth.records, truth.bins, truth.sketches)
        return Sent([torch.zeros(1)], lambda parts: found)

    def step(  # type: ignore[override]
        self,
        before: Snapshot | None,
        after: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
        divisors: DeviceDivisors | None,
    ) -> Sent[DeviceSteps]:
        indices = self._note(after)
        compared = np.zeros(len(after), np.int64)
        compared[indices] = -1
        return Sent([torch.zeros(1)], lambda parts: DeviceSteps(None, compared, None))


def test_what_the_kernels_cannot_read_is_left_to_the_other_engine() -> None:
    other = Other()
    some = TritonEngine(other, tile=512)
    tensors = [normal(30, 20).float(), normal(30, 20), None, normal(20, 30).float().t()]
    times = row_times(tensors)
    wanted = Wanted(histograms=True, sketches=True, rows=times)
    places = places_of(tensors)
    found = measured(some.measure(tensors, places, wanted))
    assert other.given == [[1, 3]]
    assert times.now == 1
    gathered = gather(tensors)  # holds what is read
    truth = kernel.measure(gathered.batch, bins=True, seeds=places.seeds, offsets=places.offsets)
    for index in (0, 1, 3):
        norm = float(truth.records["norm"][index])
        assert float(found.records["norm"][index]) == pytest.approx(norm, rel=1e-6)
    assert found.bins is not None
    assert [b.first_exponent for b in found.bins] == [b.first_exponent for b in truth.bins]
    before = some.snapshot(tensors)
    assert before.copies[1] is not None
    assert before.copies[1].dtype is torch.float64
    assert stepped(some.step(before, tensors, tensors, None)).compared.tolist() == [600, -1, 0, -1]
    assert other.given[1:] == [[1, 3]]


def test_beside_the_engine_of_torch_operations() -> None:
    some = TritonEngine(TorchEngine(torch.device("cpu")), tile=512)
    training = Training()
    for part in (training.weights, training.gradients, training.seconds):
        part[1] = part[1].double()
    gradients = [training.gradients[0].t().contiguous().t(), *training.gradients[1:]]
    places, times = places_of(gradients), row_times(gradients)
    wanted = Wanted(histograms=True, sketches=True, rows=times)
    found = measured(some.measure(gradients, places, wanted))
    assert differences(gradients, found, places) == []
    assert times.now == 1
    before, old = some.snapshot(training.weights), copied(training)
    training.move()
    steps = stepped(some.step(before, training.weights, gradients, training.divisors))
    assert_alike(steps, *truth(old, training, whole=True))


def test_whatever_is_launched_was_rehearsed() -> None:
    """Or a training would stand still while a kernel is compiled."""
    seen: set[str] = set()

    def note(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        types = [a.dtype if isinstance(a, Tensor) else int for a in arguments]
        seen.add(f"{kernel.__name__} {types} {sorted(constants.items(), key=str)}")

    rehearse(note, [FULL, BRAIN])
    rehearsed = set(seen)
    some = TritonEngine(NoEngine(), launch=note)
    for dtype in (FULL, BRAIN):
        training = Training((dtype,) * 3)
        training.weights[0] = normal(40, 50).to(dtype)[1:38]
        unaligned = normal(1025).to(dtype)[1:]
        gradients = [training.gradients[0], unaligned, *training.gradients[2:]]
        places = places_of(gradients)
        for wanted in (Wanted(), Wanted(True), Wanted(False, True), Wanted(hashes=True)):
            some.measure(gradients, places, wanted)
        for whole in (True, False):
            before = some.copy(training.weights, whole=whole)
            some.step(before, training.weights, gradients, training.divisors)
        some.output(unaligned)
    assert seen == rehearsed
