"""Any number of threads gives the same bits; where none can be had, the caller does it all."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.kernel.cases import CONTENTS, SIZES, Case, batch, case

from gradwatch import kernel
from gradwatch.kernel import Batch, Dtype

PIECE = 64 * 4096
THREADS = (1, 2, 3, 8)
TASKS = Path("/proc/self/task")
Parts = tuple[bytes, ...]


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    yield
    kernel.set_threads(1)


def spread_out(rng: np.random.Generator, n: int, dtype: Dtype, name: str) -> Case:
    """`n` elements of one of the awkward kinds, made from fewer."""
    some = CONTENTS[name](rng, 40_009)
    return case(name, np.resize(some, n), dtype)


@cache
def tensors() -> tuple[Case, ...]:
    """More than eight million elements: tiny, empty and huge tensors of all types."""
    rng = np.random.default_rng(21)
    large = [
        spread_out(rng, 3 * PIECE + 17, dtype, name)
        for dtype in Dtype
        for name in ("gaussian", "mostly nan")
    ]
    odd = [
        spread_out(rng, PIECE + extra, Dtype.F32, name)
        for extra, name in ((0, "offset"), (1, "all octaves"), (-1, "rising"), (4096, "all nan"))
    ]
    tiny = [case("tiny", rng.standard_normal(n), dtype) for n in (0, *SIZES) for dtype in Dtype]
    some_rows = rng.standard_normal((1000, 1500)) * (rng.random((1000, 1)) < 0.5)
    rows = case("rows", some_rows, Dtype.F32)
    return (*tiny[:7], large[0], rows, *tiny[7:], *large[1:], *odd)


def results(cases: tuple[Case, ...]) -> Parts:
    """Everything the passes give, as bytes."""
    x, n = batch(list(cases)), len(cases)
    offsets = np.arange(n) * 1001
    ones, eps = np.full(n, 0.5), np.full(n, 1e-3)
    touched = [np.zeros(c.rows, np.uint8) for c in cases]
    room = [Case(c.name, c.dtype, np.zeros_like(c.raw), c.values) for c in cases]
    kernel.copy(x, batch(room))
    records, bins = kernel.measure(x, bins=True, touched=touched)
    turned = [Case(c.name, c.dtype, c.raw.ravel()[::-1].copy(), c.values) for c in cases]
    updates, ratios = kernel.step(x, batch(turned), x, x, correction=ones, eps=eps)
    return (
        kernel.measure(x).records.tobytes(),
        records.tobytes(),
        b"".join(b.negative.tobytes() + b.positive.tobytes() for b in bins),
        b"".join(mark.tobytes() for mark in touched),
        updates.tobytes(),
        ratios.tobytes(),
        kernel.step(x, batch(turned))[0].tobytes(),
        kernel.step(None, None, x, x, correction=ones, eps=eps)[1].tobytes(),
        kernel.hashes(x, offsets).tobytes(),
        b"".join(c.raw.tobytes() for c in room),
    )


def test_the_results_do_not_depend_on_threads(compiled_set: str) -> None:
    kernel.set_threads(1)
    wanted = results(tensors())
    assert wanted[-1] == b"".join(c.raw.tobytes() for c in tensors())
    for threads in THREADS[1:]:
        kernel.set_threads(threads)
        assert results(tensors()) == wanted


def test_pieces_give_what_numpy_gives(compiled_set: str) -> None:
    """Sums and rows over the boundaries of pieces, beside the kernel that has none."""
    cases = tensors()
    x, n = batch(list(cases)), len(cases)
    seen, marks = kernel.measure(x).records, kernel.hashes(x, np.zeros(n))
    bins = kernel.measure(x, bins=True).bins
    wanted, its_bins, its_marks = by_numpy()
    assert marks.tobytes() == its_marks.tobytes()
    for one, other in zip(bins, its_bins, strict=True):
        assert one.first_exponent == other.first_exponent
        np.testing.assert_array_equal(one.negative, other.negative)
        np.testing.assert_array_equal(one.positive, other.positive)
    for name in ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows", "min", "max"):
        np.testing.assert_array_equal(seen[name], wanted[name])
    for name in ("std", "norm", "abs_mean"):
        np.testing.assert_allclose(seen[name], wanted[name], rtol=1e-6)
    np.testing.assert_allclose(seen["kurtosis"], wanted["kurtosis"], rtol=1e-5, atol=1e-5)


@cache
def by_numpy() -> tuple[np.ndarray, list[kernel.Bins], np.ndarray]:
    before, x = kernel.instruction_set, batch(list(tensors()))
    kernel.select("none")
    try:
        return *kernel.measure(x, bins=True)[:2], kernel.hashes(x, np.zeros(len(x)))
    finally:
        kernel.select(before)


@pytest.mark.parametrize("length", [1, 7, 1000, 4096, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5])
@pytest.mark.parametrize("zero", ["none", "all", "every third", "first", "last"])
def test_rows_that_pieces_cut(instruction_set: str, length: int, zero: str) -> None:
    rows = max(3, 3 * PIECE // length // (40 if length == 1 else 1))
    table = np.ones((rows, length), np.float32)
    which = {
        "none": slice(0, 0),
        "all": slice(None),
        "every third": slice(None, None, 3),
        "first": slice(0, 1),
        "last": slice(-1, None),
    }[zero]
    table[which] = -0.0
    touched = np.zeros(rows, np.uint8)
    tensors, owners = kernel.batch_of([table])
    (record,) = kernel.measure(tensors, touched=[touched]).records
    del owners
    wanted = table.any(axis=1)
    np.testing.assert_array_equal(touched, wanted)
    assert record["zero_rows"] == np.count_nonzero(~wanted)


def test_one_element_keeps_a_row_of_several_pieces_alive(instruction_set: str) -> None:
    for place in (0, PIECE - 1, PIECE, 2 * PIECE):
        table = np.zeros((2, 2 * PIECE + 1), np.float32)
        table[1, place] = 1.0
        (record,) = kernel.measure_arrays([table])
        assert record["zero_rows"] == 1


@pytest.mark.parametrize("wrong", [0, -1])
def test_no_threads_at_all(wrong: int) -> None:
    _native = pytest.importorskip("gradwatch.kernel._native")
    with pytest.raises(ValueError, match="at least one"):
        _native.set_threads(wrong)


@pytest.mark.skipif(len(kernel.available()) < 2, reason="numpy only")
@pytest.mark.skipif(not TASKS.is_dir(), reason="needs /proc")
def test_there_really_are_threads() -> None:
    x = np.ones(12 << 20, np.float32)
    batch_ = Batch.of([x.ctypes.data], [x.size], [0])
    kernel.set_threads(4)
    over = threading.Event()

    def keep_measuring() -> None:
        while not over.is_set():
            kernel.measure(batch_)

    worker = threading.Thread(target=keep_measuring)
    before = len(list(TASKS.iterdir()))
    worker.start()
    most, deadline = 0, time.monotonic() + 60
    while most < before + 4 and time.monotonic() < deadline:
        most = max(most, len(list(TASKS.iterdir())))
    over.set()
    worker.join()
    assert most >= before + 4  # the worker, and three beside it


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


START = """
import os, numpy as np
from gradwatch import kernel
x = np.random.default_rng(0).standard_normal(9 << 20, np.float32)
tensors = kernel.Batch.of([x.ctypes.data], [x.size], [0])
wanted = kernel.measure(tensors).records.tobytes()
kernel.set_threads(8)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_too() -> None:
    done = run(
        "assert kernel.measure(tensors).records.tobytes() == wanted\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if kernel.measure(tensors).records.tobytes() == wanted else 3)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    assert done.stdout.split() == ["0"], done.stderr


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_where_no_thread_can_be_created_the_caller_works() -> None:
    # Half a megabyte of address space is left: too little for the stack of a thread.
    done = run(
        "import resource\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "records = np.empty(1, kernel.MOMENTS)\n"
        "hard = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "most = pages * os.sysconf('SC_PAGE_SIZE') + 2**19\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, hard))\n"
        "import threading\n"
        "threading.stack_size(1 << 20)\n"
        "try:\n"
        "    threading.Thread(target=print).start()\n"
        "except RuntimeError:\n"
        "    print('refused', kernel.measure(tensors).records.tobytes() == wanted)\n"
    )
    assert done.stdout.split() == ["refused", "True"], done.stderr


@pytest.mark.skipif(len(kernel.available()) < 2, reason="numpy only")
def test_threads_do_not_flush_small_numbers() -> None:
    torch = pytest.importorskip("torch")
    x = np.full(9 << 18, 1e-40, np.float32)
    x[0] = 0.0
    before = kernel.measure_arrays([x])[0]
    kernel.set_threads(4)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        flushed = kernel.measure_arrays([x])[0]
    finally:
        torch.set_flush_denormal(False)
    assert before["zeros"] == 1
    assert flushed.tobytes() == before.tobytes()
