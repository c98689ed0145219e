"""How often the Triton engine launches, what it reads and writes: seen by hooking the interpreter.

Collected by `test_triton_engine.py` in a process of its own, in which TRITON_INTERPRET is set.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from tests.record.device.triton_cases import engine, normal, places_of, row_times
from tests.record.device.triton_shapes import Shape, gpt2, llama, read_to_measure
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter  # type: ignore[import-untyped]

from gradwatch.record.device import triton_engine
from gradwatch.record.device.engine import DeviceDivisors, Wanted
from gradwatch.record.tensors import fixed_coordinates

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
ALL = Wanted(histograms=True, sketches=True, hashes=True)
SENT = "lift_fresh"
"""How an array of numpy becomes a tensor: a table that is sent to the device."""
FREE = ("empty", "view", "slice", "detach", "as_strided", "alias", "select", "reshape")
"""Operations of torch that launch nothing."""


class Watch(TorchDispatchMode):
    """Launches and operations, and the bytes read of the user's tensors and written elsewhere."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.users: list[Tensor] = []
        self.launches: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.read = 0
        self.copies = 0
        self._starts = self._ends = self._mine = np.zeros(0, np.uint64)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == SENT:
            self.copies += 1
        elif not name.startswith(FREE):
            self.operations[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.launches.total() + self.operations.total()

    def launched(self, name: str) -> None:
        self.launches[name] += 1
        users = {id(tensor) for tensor in self.users}
        alive = [t for t in gc.get_objects() if type(t) is Tensor and id(t) not in users]
        ranges = [(t.data_ptr(), t.nbytes, 0) for t in alive if t.nbytes]
        ranges += [(t.data_ptr(), t.nbytes, 1) for t in self.users]
        # A tensor of ours may be part of another of ours; the user's are apart from all of them.
        table = np.array(sorted(ranges), np.uint64)
        self._starts, self._mine = table[:, 0], table[:, 2]
        self._ends = np.maximum.accumulate(table[:, 0] + table[:, 1])

    def touched(self, addresses: Any, mask: Any, *, writing: bool) -> None:
        where = np.asarray(addresses.data)
        on = np.broadcast_to(np.asarray(mask.data), where.shape)
        flat = where[on].astype(np.uint64)
        at = np.searchsorted(self._starts, flat, side="right") - 1
        size = addresses.get_element_ty().primitive_bitwidth // 8
        assert (at >= 0).all()
        assert (flat + np.uint64(size) <= self._ends[at]).all(), "outside of every tensor"
        users = int(self._mine[at].sum())
        assert not (writing and users), "wrote into a tensor of the user"
        if not writing:
            self.read += users * size


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watching = Watch()
    builder, grid = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic, call = builder.create_atomic_rmw, grid.__call__

    def loaded(self: Any, addresses: Any, mask: Any, *rest: Any) -> Any:
        watching.touched(addresses, mask, writing=False)
        return load(self, addresses, mask, *rest)

    def stored(self: Any, addresses: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watching.touched(addresses, mask, writing=True)
        return store(self, addresses, value, mask, *rest)

    def added(self: Any, how: Any, addresses: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watching.touched(addresses, mask, writing=True)
        return atomic(self, how, addresses, value, mask, *rest)

    def launched(self: Any, *arguments: Any, **constants: Any) -> Any:
        watching.launched(self.fn.__name__)
        with torch.utils._python_dispatch._disable_current_modes():
            return call(self, *arguments, **constants)

    monkeypatch.setattr(builder, "create_masked_load", loaded)
    monkeypatch.setattr(builder, "create_masked_store", stored)
    monkeypatch.setattr(builder, "create_atomic_rmw", added)
    monkeypatch.setattr(grid, "__call__", launched)
    fixed_coordinates.cache_clear()
    gc.freeze()  # what is there already is not looked through at every launch
    yield watching
    gc.unfreeze()


def some_tensors(shapes: Sequence[Shape], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [normal(*shape).to(dtype) for shape in shapes]


def size_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("sketched", [False, True])
def test_launches_do_not_grow_with_the_number_of_tensors(watch: Watch, sketched: bool) -> None:
    for count in (3, 20):
        watch.users = some_tensors([(4, 32)] * count)
        times, places = row_times(watch.users), places_of(watch.users)
        some, wanted = engine(tile=128), Wanted(sketches=sketched, rows=times)
        some.measure(watch.users, places, wanted)  # makes what is kept
        watch.launches.clear()
        with watch:
            some.measure(watch.users, places, wanted)
        assert watch.launches == {"measure": 1, "merge": 1}
        assert not watch.operations
        assert watch.copies == 1
        watch.copies = 0


def test_each_type_and_alignment_is_one_launch_more(watch: Watch) -> None:
    base = normal(200).float()
    tensors = [base[:64], base[64:128].bfloat16(), base[1:50], base[128:140], base[3:9].half()]
    places, some = places_of(tensors), engine(tile=128)
    some.measure(tensors, places, ALL)
    assert watch.launches == {"measure": 4, "spread": 4, "merge": 1}


LONG = (pytest.mark.long, pytest.mark.timeout(1800))


@pytest.mark.parametrize(
    ("shapes", "sketched"),
    [
        pytest.param(gpt2(96)[:30], True, id="some of gpt2 sketched"),
        pytest.param(gpt2(96), True, marks=LONG, id="gpt2 sketched"),
        pytest.param(gpt2(32), False, marks=LONG, id="gpt2"),
        pytest.param(llama(256), False, marks=LONG, id="llama"),
        pytest.param(llama(256), True, marks=LONG, id="llama sketched"),
    ],
)
def test_bytes_are_those_counted_from_the_sizes(
    watch: Watch, shapes: list[Shape], sketched: bool
) -> None:
    watch.users = some_tensors(shapes)
    places, some = places_of(watch.users), engine(tile=64, programs=40)
    with watch:
        some.measure(watch.users, places, Wanted(sketches=sketched))
    counted = sum(read_to_measure(prod(shape), 64, sketched=sketched) for shape in shapes)
    assert watch.read == 4 * counted
    assert watch.launches == {"measure": 1, "merge": 1}


@pytest.mark.parametrize(("sketched", "most"), [(False, 1.0), (True, 1.13)])
def test_large_tensors_are_read_once(watch: Watch, sketched: bool, most: float) -> None:
    watch.users = some_tensors([(300, 256)])
    places, some = places_of(watch.users), engine(tile=1024, programs=8)
    with watch:
        some.measure(watch.users, places, Wanted(sketches=sketched, histograms=sketched))
    assert watch.read <= most * size_of(watch.users)


def test_what_is_not_whole_is_read_twice_and_nothing_behind_it(watch: Watch) -> None:
    base = [normal(1000).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    watch.users = [base[0][1:700], base[1][3:8], base[0][701:702]]
    watch.users[0][5] = float("nan")
    watch.users[0][300:400] = 0
    del base  # or what lies around them would count as ours
    places, some = places_of(watch.users), engine(tile=256)
    with watch:
        some.measure(watch.users, places, ALL)
    assert watch.read <= 4.2 * size_of(watch.users)


def test_a_whole_recorded_step(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients with everything, weights with everything, a copy, update and Adam's ratio."""
    monkeypatch.setattr(triton_engine, "MOST_MEMORY", 1000)
    shapes: list[Shape] = [(70, 64), (20, 30), (7,)]
    weights, gradients, seconds = (some_tensors(shapes) for _ in range(3))
    seconds = [second.square() for second in seconds]
    watch.users = [*weights, *gradients, *seconds]
    count = len(weights)
    times, places, some = row_times(weights), places_of(weights), engine(tile=512, programs=20)
    divisors = DeviceDivisors(seconds, [3.0] * count, np.full(count, 0.999), np.full(count, 1e-8))
    everything = Wanted(histograms=True, hashes=True)
    some.step(some.snapshot(weights), weights, gradients, divisors)  # makes what is kept
    some.measure(weights, places, everything)
    watch.launches.clear()
    with watch:
        before = some.snapshot(weights)
        some.measure(gradients, places, Wanted(sketches=True, rows=times))
        some.step(before, weights, gradients, divisors)
        assert watch.total <= 8, watch.operations
        assert watch.copies == 3
        assert watch.launches == {"copy": 1, "measure": 1, "merge": 1, "step": 2, "merge_step": 1}
        some.measure(gradients, places, Wanted(histograms=True, sketches=True, rows=times))
        some.measure(weights, places, everything)
    assert watch.total <= 16, watch.operations
    assert watch.copies == 5
    assert watch.operations == {"zeros": 2}
    assert before.copies[0] is not None
    assert before.copies[0].numel() == 4096


def test_an_output_is_read_once_in_one_launch(watch: Watch) -> None:
    watch.users = [normal(5000).bfloat16()]
    some = engine(tile=512)
    with watch:
        some.output(watch.users[0])
    assert watch.total == 1
    assert watch.read == size_of(watch.users)


def test_the_second_step_takes_no_more_memory(watch: Watch) -> None:
    tensors = some_tensors([(6, 33), (10,)])
    places, some = places_of(tensors), engine(tile=256)
    alive = []
    for _ in range(3):
        some.measure(tensors, places, ALL)
        gc.collect()
        alive.append(sum(t.nbytes for t in gc.get_objects() if type(t) is Tensor))
    assert alive[1] == alive[2]
