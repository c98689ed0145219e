"""Histograms of many tensors at once: packed as one by one, and the same after reading."""

import struct

import numpy as np

from gradwatch.run import Histogram, HistogramTable
from gradwatch.store.format import pack_histograms, unpack_histograms


def some() -> list[Histogram | None]:
    random = np.random.default_rng(5)

    def counts(size: int) -> np.ndarray:
        return random.integers(0, 1 << 60, size).astype(np.uint64)

    sizes = [3, 0, 40, 1, 2]
    made = [Histogram(3 * s - 20, counts(s), counts(s), s, s + 1, s + 2, s + 3) for s in sizes]
    return [None, *made[:2], None, *made[2:]]


def packed_naively(subject: int, h: Histogram) -> bytes:
    others = (h.zeros, h.nan, h.positive_inf, h.negative_inf)
    head = struct.pack("<IiIIQQQQ", subject, h.first_exponent, len(h.negative), 0, *others)
    return head + struct.pack(f"<{2 * len(h.negative)}Q", *h.negative, *h.positive)


def same(one: Histogram, other: Histogram) -> bool:
    fields = ("first_exponent", "zeros", "nan", "positive_inf", "negative_inf")
    return (
        all(getattr(one, name) == getattr(other, name) for name in fields)
        and one.negative.tolist() == other.negative.tolist()
        and one.positive.tolist() == other.positive.tolist()
    )


def test_a_table_is_packed_as_its_histograms_one_after_another() -> None:
    given = some()
    table = HistogramTable.of(given)
    there = [h for h in given if h is not None]
    ids = np.array([7, 1, 4, 2, 9, 11, 12], np.uint32)[table.tensors]
    assert ids.tolist() == [1, 4, 9, 11, 12]
    payload = pack_histograms(ids, table)
    assert payload == b"".join(packed_naively(int(n), h) for n, h in zip(ids, there, strict=True))
    found = unpack_histograms(memoryview(payload))
    assert list(found) == ids.tolist()
    assert all(same(*pair) for pair in zip(found.values(), there, strict=True))
    assert all(same(*pair) for pair in zip(table, there, strict=True))


def test_parts_of_a_table_are_tables() -> None:
    table = HistogramTable.of(some())
    whole = list(table)
    for begin in range(len(table)):
        for end in range(begin, len(table) + 1):
            part = table.part(begin, end)
            assert len(part) == end - begin
            assert all(same(*pair) for pair in zip(part, whole[begin:end], strict=True))
    assert pack_histograms(np.zeros(0, np.uint32), table.part(2, 2)) == b""
    assert len(HistogramTable.of([None])) == 0
