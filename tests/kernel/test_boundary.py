"""Nothing is read before it was checked: wrong batches raise ValueError on both sides."""

import numpy as np
import pytest

from gradwatch import kernel
from gradwatch.kernel import MOMENTS, Batch, Dtype

GOOD = np.zeros(6, np.float32)
AT = GOOD.ctypes.data
WRONG = {
    "null pointer": Batch.of([0], [6], [0]),
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
    ones = np.ones(len(wrong))
    for call in (
        lambda: kernel.measure(wrong).records,
        lambda: kernel.measure(wrong, bins=True)[:2],
        lambda: kernel.step(wrong, good)[0],
        lambda: kernel.step(good, wrong)[0],
        lambda: kernel.step(good, good, wrong)[0],
        lambda: kernel.step(None, None, wrong, good, correction=ones, eps=ones)[1],
        lambda: kernel.sketch(wrong, ones, ones),
        lambda: kernel.hashes(wrong, ones),
        lambda: kernel.copy(good, wrong),
        lambda: kernel.row_spread(wrong),
        lambda: kernel.count_cells(wrong, ones, ones, cells=2),
        lambda: kernel.list_beyond(wrong, ones, ones, most=2),
        lambda: kernel.read(wrong),
    ):
        with pytest.raises(ValueError):
            call()


def test_batches_must_match(instruction_set: str) -> None:
    good, short = Batch.of([AT], [6], [0]), Batch.of([AT], [5], [0])
    other, two = Batch.of([AT], [6], [Dtype.BF16]), Batch.of([AT, AT], [3, 3], [0, 0])
    for second in (short, two):
        with pytest.raises(ValueError):
            kernel.step(None, None, good, second, correction=[1.0], eps=[1.0])[1]
    for second in (short, other, two):
        with pytest.raises(ValueError):
            kernel.step(good, second)[0]
        with pytest.raises(ValueError):
            kernel.copy(good, second)
    with pytest.raises(ValueError):
        kernel.step(good, good, short)[0]
    with pytest.raises(ValueError):
        kernel.step(None, None, good, good, correction=[1.0, 2.0], eps=[1.0])[1]


@pytest.mark.parametrize(
    "marks",
    [
        [np.zeros(2, np.uint8)],
        [np.zeros(3, np.int16)],
        [np.zeros(6, np.uint8)[::2]],
        [],
    ],
)
def test_touched_rows_must_fit(instruction_set: str, marks: list[np.ndarray]) -> None:
    with pytest.raises(ValueError):
        kernel.measure(Batch.of([AT], [6], [0], [3]), touched=marks)


@pytest.mark.skipif(len(kernel.available()) < 2, reason="numpy only")
@pytest.mark.parametrize("name", WRONG)
def test_the_c_side_checks_by_itself(name: str) -> None:
    from gradwatch.kernel import _native

    wrong = WRONG[name]
    arrays = (wrong.pointers, wrong.counts, wrong.dtypes, wrong.rows)
    with pytest.raises(ValueError):
        _native.measure(arrays, np.zeros(len(wrong), MOMENTS), None, None, None)
    with pytest.raises(ValueError):
        _native.read(arrays)


@pytest.mark.skipif(len(kernel.available()) < 2, reason="numpy only")
def test_the_c_side_checks_its_outputs() -> None:
    from gradwatch.kernel import _native

    good = Batch.of([AT], [6], [0], [3])
    arrays = (good.pointers, good.counts, good.dtypes, good.rows)
    records = np.zeros(1, MOMENTS)
    ones = np.ones(1, np.uint64)
    frozen = records.copy()
    frozen.flags.writeable = False
    for wrong in (
        (arrays, np.zeros(2, MOMENTS), None, None, None),
        (arrays, np.zeros(0, MOMENTS), None, None, None),
        (arrays, records, [], None, None),
        (arrays, records, [np.zeros(2, np.uint8)], None, None),
        (arrays, records, None, (ones, ones, np.zeros(2 * 277 - 1, np.uint64)), None),
        (arrays, records, None, (ones, ones[:0], np.zeros(2 * 277, np.uint64)), None),
        (arrays, records, None, (ones[:0], ones, np.zeros(2 * 277, np.uint64)), None),
        (arrays, records, None, None, (ones, ones, ones, np.zeros(31, np.float32))),
        (arrays, records, None, None, (ones, ones, ones[:0], np.zeros(32, np.float32))),
        ((*arrays[:3], arrays[3][:0]), records, None, None, None),
    ):
        with pytest.raises(ValueError):
            _native.measure(*wrong)
    for wrong_type in (
        (arrays, frozen, None, None, None),
        (arrays, 3, None, None, None),
        (arrays, records, None, ones, None),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            _native.measure(*wrong_type)
    whole, real, room = ones.view(np.int64), np.ones(1), np.zeros(6, np.uint64)
    for counts, outside, cells in ((room, room[:3], 5), (room[:5], room[:2], 5), (room, room, 0)):
        with pytest.raises(ValueError):
            _native.count_cells(arrays, (whole, real, counts, outside), cells)
    for totals, indices, most in ((room[:1], room, 5), (room[:2], room[:5], 5), (room, room, -1)):
        with pytest.raises(ValueError):
            _native.list_beyond(arrays, (real, real, totals, indices), most)
    odd = Batch.of([AT + 1], [1], [0])
    with pytest.raises(ValueError, match="aligned"):
        _native.read((odd.pointers, odd.counts, odd.dtypes, odd.rows))
    with pytest.raises(ValueError):
        _native.select("mmx")


def test_small_numbers_count_even_where_the_processor_flushes_them(instruction_set: str) -> None:
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
    if instruction_set != "none":  # numpy compares as the processor is told to
        assert flushed.tobytes() == before.tobytes()
