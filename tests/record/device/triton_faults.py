"""Faults planted into the kernels: each must be seen by a comparison with float64 numpy.

Collected by `test_triton_engine.py` in a process of its own, in which TRITON_INTERPRET is set.
"""

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.record.device.triton_cases import differences, engine, made, measured, places_of

from gradwatch.record.device import triton_engine, triton_kernels, triton_merge
from gradwatch.record.device.engine import Wanted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
SOURCES = {
    module.__name__.rpartition(".")[2]: Path(str(module.__file__)).read_text()
    for module in (triton_kernels, triton_merge)
}
ALL = Wanted(histograms=True, sketches=True, hashes=True)


class Fault(NamedTuple):
    """What is put in place of what, and the tensor that shows it."""

    right: str
    wrong: str
    kind: str
    shape: tuple[int, ...]


FAULTS = {
    "rest of the mean forgotten": Fault(
        "r = rest.to(tl.float64) / tl.maximum(n, 1.0)",
        "r = rest.to(tl.float64) * 0.0",
        "farthest offset",
        (1025,),
    ),
    "one element too few in a tail": Fault(
        "    there = offsets < size\n", "    there = offsets < size - 1\n", "tails", (300,)
    ),
    "sign of subnormal bins": Fault(
        "key = 512 + ((bits >> 26) & 32) + lead", "key = 512 + lead", "subnormal", (300,)
    ),
    "unit of the largest not bounded below": Fault(
        "tl.maximum(magnitude_bits >> 23, 1), 253)",
        "tl.maximum(magnitude_bits >> 23, 120), 253)",
        "tiny",
        (600,),
    ),
    "turn of the lanes": Fault(
        "turn = (_shift_right(word, 32) & 31)",
        "turn = (_shift_right(word, 33) & 31)",
        "gaussian",
        (300,),
    ),
    "factor of a joined moment": Fault(
        "m3 += c3 + 3.0 * a * c2", "m3 += c3 + 2.0 * a * c2", "steps", (2600,)
    ),
    "factor of a moved sum": Fault("by * (3.0 * s2 + by", "by * (2.0 * s2 + by", "steps", (1500,)),
    "negative elements touch no row": Fault(
        "mask=x != 0.0)", "mask=x > 0.0)", "negative with zeros", (40, 30)
    ),
    "infinities of one sign": Fault(
        "((x == INF) & there)", "((tl.abs(x) == INF) & there)", "some bad", (600,)
    ),
    "overflow of the sum not seen": Fault(
        "if magnitudes < INF:", "if magnitudes == magnitudes:", "huge", (600,)
    ),
    "units of the parts swapped": Fault(
        "u, v = two_to(e - unit), two_to(te - unit)",
        "v, u = two_to(e - unit), two_to(te - unit)",
        "steps",
        (1500,),
    ),
    "rows of the next tile": Fault("times += ahead", "times += 0", "zero rows", (40, 30)),
    "place of a word": Fault(
        "_hash(raw, place + start + tl", "_hash(raw, place + 0 * start + tl", "gaussian", (2600,)
    ),
}
"""Those of the moments about the mean and of rows need cases of their own: quick ones miss them."""


def differing(fault: Fault) -> list[str]:
    tensors = [made(fault.kind, fault.shape, torch.float32)]
    sent = engine(tile=256, programs=4).measure(tensors, places_of(tensors), ALL)
    return differences(tensors, measured(sent))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    assert differing(fault) == []
    (where,) = (module for module, source in SOURCES.items() if fault.right in source)
    path = tmp_path / "faulty_kernels.py"
    path.write_text(SOURCES[where].replace(fault.right, fault.wrong))
    spec = importlib.util.spec_from_file_location("faulty_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "faulty_kernels", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(triton_engine, where, module)
    assert differing(fault)
