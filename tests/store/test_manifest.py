"""The manifest: what is written is read, and nothing that was changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gradwatch.store.format import BadPayload
from gradwatch.store.manifest import (
    Manifest,
    SealedFile,
    as_stretches,
    decode,
    encode,
    numbers_of,
    stretches,
)

FILE = SealedFile("rows/grad/00012.parquet", 1000, 50, ((0, 2, 3), (7, 1, 2)), 90, (1, 2**32 - 1))
MANIFEST = Manifest(
    3, 1, True, ((1, 12, 0, 99),), {"grad": ["grad_norm"]}, {"lr": float("inf")}, (FILE,)
)


@given(some.lists(some.integers(-(2**40), 2**40), max_size=40))
def test_stretches_stand_for_the_same_numbers(numbers: list[int]) -> None:
    given = stretches(as_stretches(np.array(numbers, np.int64)))
    assert numbers_of(given).tolist() == numbers


def test_regular_steps_are_one_stretch() -> None:
    assert as_stretches(np.arange(3, 3000, 4)) == ((3, 4, 750),)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode(encode(MANIFEST)) == MANIFEST
    assert decode(encode(MANIFEST, [FILE.line()])) == MANIFEST


def test_a_file_tells_what_it_is_by_its_path() -> None:
    assert (FILE.kind, FILE.group, FILE.number) == ("rows", "grad", 12)
    assert (FILE.first_step, FILE.last_step) == (0, 8)


def test_every_changed_or_missing_byte_is_noticed() -> None:
    raw = encode(MANIFEST)
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(BadPayload):
            decode(changed)
        with pytest.raises(BadPayload):
            decode(raw[:at])


@pytest.mark.parametrize(
    "line",
    [
        FILE.line().replace("rows/grad/", "rows/../../"),
        FILE.line().replace("rows/grad/", "/rows/grad"),
        FILE.line().replace("[0, 2, 3]", "[0, 2, 4000000000]"),
        FILE.line().replace("[0, 2, 3]", "[4611686018427387903, 4611686018427387903, 3]"),
        FILE.line().replace('"bytes": 1000', '"bytes": -1'),
        FILE.line().replace('"bytes": 1000', '"bytes": "many"'),
        "[]",
        "[" * 5000 + "]" * 5000,
    ],
)
def test_a_forged_manifest_with_a_right_checksum_is_refused(line: str) -> None:
    with pytest.raises(BadPayload):
        decode(encode(MANIFEST, [line]))
