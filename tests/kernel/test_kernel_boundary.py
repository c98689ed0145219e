"""Nothing is read before it was checked: wrong batches raise ValueError on both sides."""

import numpy as np
import pytest

from gradwatch import kernel
from gradwatch.kernel import MOMENTS, Batch, Dtype

GOOD = np.zeros(6, np.float32)
AT = GOOD.ctypes.data
WRONG = {
    "null pointer": Batch.of([0], [6], [0]),
    "odd pointer": Batch.of([AT + 2], [1], [0]),
    "negative count": Batch.of([AT], [-1], [0]),
    "unknown dtype": Batch.of([AT], [6], [9]),
    "negative rows": Batch.of([AT], [6], [0], [-2]),
    "rows that do not divide": Batch.of([AT], [6], [0], [4]),
    "missing count": Batch.of([AT, AT], [6], [0, 0]),
    "missing rows": Batch.of([AT], [6], [0], []),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_batches_are_refused(instruction_set: str, name: str) -> None:
    wrong, good = WRONG[name], Batch.of([AT], [6], [0])
    for call in (
        lambda: kernel.measure(wrong),
        lambda: kernel.measure(wrong, bins=True),
        lambda: kernel.step(wrong, good),
        lambda: kernel.step(good, wrong),
        lambda: kernel.step(good, good, wrong),
        lambda: kernel.step(None, None, wrong, good),
        lambda: kernel.step(None, None, good, wrong),
        lambda: kernel.hashes(wrong, 0),
        lambda: kernel.copy(good, wrong),
        lambda: kernel.copy(wrong, good),
        lambda: kernel.row_spread(wrong),
    ):
        with pytest.raises(ValueError):
            call()


def test_batches_must_match(instruction_set: str) -> None:
    good, short = Batch.of([AT], [6], [0]), Batch.of([AT], [5], [0])
    other, two = Batch.of([AT], [6], [Dtype.BF16]), Batch.of([AT, AT], [3, 3], [0, 0])
    for second in (short, two):
        with pytest.raises(ValueError):
            kernel.step(None, None, good, second)
        with pytest.raises(ValueError):
            kernel.step(good, good, second)
    for second in (short, other, two):
        if second is other and instruction_set == "none":
            continue  # numpy compares and copies by value, within the memory there is
        with pytest.raises(ValueError):
            kernel.step(good, second)
        with pytest.raises(ValueError):
            kernel.copy(good, second)
    for lacking in ((None, None), (good, None), (None, good), (good, good, None, good)):
        with pytest.raises(ValueError):
            kernel.step(*lacking)
    with pytest.raises(ValueError):
        kernel.step(None, None, good, good, correction=[1.0, 2.0])


@pytest.mark.parametrize(
    "marks",
    [[np.zeros(2, np.uint8)], [np.zeros(3, np.int16)], [np.zeros(6, np.uint8)[::2]], []],
)
def test_touched_rows_must_fit(compiled_set: str, marks: list[np.ndarray]) -> None:
    with pytest.raises((ValueError, BufferError)):
        kernel.measure(Batch.of([AT], [6], [0], [3]), touched=marks)


@pytest.mark.parametrize("name", WRONG)
def test_the_c_side_checks_by_itself(compiled_set: str, name: str) -> None:
    from gradwatch.kernel import _native

    with pytest.raises(ValueError):
        _native.measure(WRONG[name].arrays, np.zeros(len(WRONG[name]), MOMENTS), None, None)


def test_the_c_side_checks_its_outputs(compiled_set: str) -> None:
    from gradwatch.kernel import _native

    arrays = Batch.of([AT], [6], [0], [3]).arrays
    records, ones, room = np.zeros(1, MOMENTS), np.ones(1, np.int64), np.zeros(2 * 277, np.uint64)
    frozen = records.copy()
    frozen.flags.writeable = False
    for wrong in (
        (arrays, np.zeros(2, MOMENTS), None, None),
        (arrays, np.zeros(0, MOMENTS), None, None),
        (arrays, records, [], None),
        (arrays, records, [np.zeros(2, np.uint8)], None),
        (arrays, records, None, (ones, ones, room[1:])),
        (arrays, records, None, (ones, ones[:0], room)),
        (arrays, records, None, (ones[:0], ones, room)),
        ((*arrays[:3], arrays[3][:0]), records, None, None),
        (arrays, frozen, None, None),
        (arrays, 3, None, None),
        (arrays, records, None, ones),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            _native.measure(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        _native.select("mmx")


def test_small_numbers_count_even_where_the_processor_flushes_them(compiled_set: str) -> None:
    """numpy compares as the processor is told to; C tells it otherwise while it measures."""
    torch = pytest.importorskip("torch")
    x = np.full(5000, 1e-40, np.float32)
    x[0] = 0.0
    before = kernel.measure_arrays([x])[0]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        flushed = kernel.measure_arrays([x])[0]
    finally:
        torch.set_flush_denormal(False)
    assert before["zeros"] == 1
    assert flushed.tobytes() == before.tobytes()
