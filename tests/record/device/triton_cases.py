"""The Triton kernel, through Triton's interpreter, against the kernel of the CPU.

Collected by `test_triton.py` in a process of its own, in which TRITON_INTERPRET is set.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.record.device.fakes import Measured, Tracked, family, gradients, meter, parameters
from tests.record.device.fakes import measured as measured_by
from tests.record.device.interpreting import quicken
from tests.record.device.test_engine import assert_near, normal
from torch import Tensor

from gradwatch import kernel
from gradwatch.record import triton
from gradwatch.stats import Family, State

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
quicken()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
COUNTS = ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows", "abs_max", "min", "max")


def scattered(x: Tensor) -> Tensor:
    flat = x.clone().view(-1)
    flat[:4] = torch.tensor([math.nan, math.inf, -math.inf, math.nan])[: len(flat)]
    flat[len(flat) // 2] = math.nan
    return flat.view(x.shape)


def zero_rows(x: Tensor) -> Tensor:
    return x * (torch.arange(len(x)) % 3 > 0).view(-1, *[1] * (x.dim() - 1))


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda x: x,
    "far offset": lambda x: x * 0.01 + 1000,
    "tails": lambda x: x**5,
    "zeros": lambda x: x.view(-1).where(torch.arange(x.numel()) % 3 > 0, 0).view(x.shape),
    "zero rows": zero_rows,
    "first tile zero": lambda x: x.view(-1).where(torch.arange(x.numel()) > 4200, 0).view(x.shape),
    "all zero": lambda x: x * 0,
    "constant": lambda x: torch.full_like(x, 0.7),
    "subnormal": lambda x: x * 1e-40,
    "small": lambda x: x * 1e-30,
    "huge": lambda x: x * 6e37,
    "wide": lambda x: x * torch.pow(10.0, x * 10).clamp(1e-30, 1e30),
    "negative": lambda x: -x.abs(),
    "some bad": scattered,
    "all NaN": lambda x: x * math.nan,
    "all -Inf": lambda x: torch.full_like(x, -math.inf),
}


def measured(tensors: list[Tensor], **options: Any) -> Measured:
    return measured_by(*tensors, engine=triton.by_triton, **options)


def truth(tensors: list[Tensor]) -> Any:
    batch, owners = kernel.batch_of([x.double().numpy() for x in tensors])
    marks = [np.zeros(len(x) if x.ndim > 1 else 0, np.uint8) for x in owners]
    given = [mark if len(mark) else None for mark in marks]
    records = kernel.measure(batch, touched=given).records
    records["zero_rows"] = [int((mark == 0).sum()) for mark in marks]
    return records


def assert_right(tensors: list[Tensor], found: Measured) -> None:
    for at, (record, wanted) in enumerate(zip(found.records, truth(tensors), strict=True)):
        assert_near(record, wanted, COUNTS, 0)
        assert_near(record, wanted, ("norm", "abs_mean"), 1e-6)
        spread = wanted["norm"] / math.sqrt(max(wanted["count"], 1))
        for name in ("mean", "std"):
            error = abs(record[name] - wanted[name])
            assert not error > 1e-6 * max(abs(wanted[name]), spread), (at, name)
        if wanted["std"] > 1e-5 * wanted["abs_max"]:
            for name in ("skewness", "kurtosis"):
                wide = pytest.approx(wanted[name], rel=1e-4, abs=1e-4, nan_ok=True)
                assert record[name] == wide, (at, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kind_of_tensor_is_measured_as_the_cpu_measures_it(dtype: torch.dtype) -> None:
    shapes = [(37, 130), (3,), (4096,), (4097,), (5, 7, 11)]
    for kind, make in KINDS.items():
        some = shapes[:2] if kind != "gaussian" else shapes
        tensors = [make(normal(*shape)).to(dtype) for shape in some]
        assert_right(tensors, measured(tensors))


def test_types_and_alignments_in_one_batch() -> None:
    base = normal(5000)
    tensors = [
        *(
            base[1:1302],
            base[3:8].bfloat16(),
            normal(40, 30).half()[1:],
            normal(600).bfloat16()[1:],
        ),
        normal(4, 3, 5, 5).to(memory_format=torch.channels_last),
    ]
    found = measured([*tensors, torch.zeros(0)])
    assert found.records["count"][-1] == 0
    assert found.whole.all()
    shown = Measured(found.records[:-1], found.whole, [], [])
    assert_right([x.contiguous() for x in tensors], shown)


def test_a_tensor_of_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [scattered(normal(130, 100) + 5), normal(70, 90), normal(4)]
    for programs in (1, 2, 1000):
        monkeypatch.setattr(triton, "PROGRAMS", programs)
        monkeypatch.setattr(triton, "TILE", 1024)
        assert_right(tensors, measured(tensors))


def test_touched_rows_samples_and_the_multiplier() -> None:
    tensors = [zero_rows(normal(50, 100)), normal(6), zero_rows(normal(7, 3))]
    found = measured(tensors, multiplier=0.5)
    shown = [None if one is None else np.flatnonzero(~one).tolist() for one in found.touched]
    assert shown == [list(range(0, 50, 3)), None, [0, 3, 6]]
    assert found.records["norm"] == pytest.approx(truth(tensors)["norm"] / 2, rel=1e-6)
    assert found.samples[1] == pytest.approx(tensors[1].numpy() / 2)
    assert len(found.samples[0]) <= 4096
    assert measured(tensors, rows=False).touched == [None] * 3


def test_the_same_bits_every_time_and_nothing_written() -> None:
    tensors = [normal(130, 100), normal(70).bfloat16()]
    copies = [x.clone() for x in tensors]
    first, second = measured(tensors), measured(tensors)
    assert first.records.tobytes() == second.records.tobytes()
    assert all(torch.equal(*pair) for pair in zip(tensors, copies, strict=True))


def test_launches_are_as_many_however_many_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every element is read once, and nothing outside of them."""
    launched: list[int] = []
    reads: list[Any] = []
    monkeypatch.setattr(triton, "measure", Launches(triton.measure, launched))
    store = triton.triton.runtime.interpreter.InterpreterBuilder  # type: ignore[attr-defined]
    first = store.create_masked_load

    def load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        reads.append(ptrs.data[mask.data.astype(bool)].reshape(-1))
        return first(self, ptrs, mask, *rest)

    monkeypatch.setattr(store, "create_masked_load", load)
    for count in (2, 20):
        tensors = [normal(70, 90), normal(30)] * count
        for rows in (False, True):
            del launched[:], reads[:]
            measured(tensors, rows=rows)
            assert launched == [1]
            addresses = np.concatenate(reads)
            for x in {id(x): x for x in tensors}.values():
                begin = x.data_ptr()
                mine = addresses[(addresses >= begin) & (addresses < begin + x.nbytes)]
                times = sum(other is x for other in tensors)
                assert len(mine) == len(np.unique(mine)) * times == x.numel() * times


class Launches:
    """A kernel whose launches are counted."""

    def __init__(self, kernel: Any, into: list[int]) -> None:
        self.kernel, self.into = kernel, into

    def __getitem__(self, grid: Any) -> Any:
        self.into.append(1)
        return self.kernel[grid]


def test_a_meter_measures_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWATCH_DEVICE_ENGINE", "triton")
    tracked = Tracked(parameters(normal(100, 90), normal(5), normal(90, 70).double()))
    made, _ = meter(tracked)
    rows, states = family(gradients(made, tracked), Family.GRAD)
    # Those of float64 are measured by torch's operations.
    assert states == [State.MEASURED, State.MEASURED, State.SAMPLED]
    wanted = truth([normal(100, 90), normal(5)])["std"]
    assert rows["grad_std"][:2] == pytest.approx(wanted, rel=1e-6)
