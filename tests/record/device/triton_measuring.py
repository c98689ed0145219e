"""What the Triton engine measures, through Triton's interpreter, against float64 numpy.

Collected by `test_triton_engine.py` in a process of its own, in which TRITON_INTERPRET is set.
"""

import numpy as np
import pytest
import torch
from tests.record.device.triton_cases import (
    DTYPES,
    KINDS,
    differences,
    engine,
    made,
    measured,
    normal,
    places_of,
    row_times,
)

from gradwatch.record.device.engine import Places, Wanted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy
ALL = Wanted(histograms=True, sketches=True, hashes=True)
QUICK = ((11, 100), (3,))
NARROW = ("gaussian", "far offset", "zeros", "constant", "subnormal", "wide", "some bad")
"""Kinds that 16 bits make something else of."""
SHAPES: list[tuple[int, ...]] = [(37, 50), (1,), (3,), (1024,), (1025,), (2047,)]
SHAPES += [(5, 700), (300, 7), (4, 3, 5, 9), (2, 3000)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kind_of_tensor_is_measured_as_the_cpu_measures_it(dtype: torch.dtype) -> None:
    kinds = KINDS if dtype is torch.float32 else NARROW
    tensors = [made(kind, shape, dtype) for kind in kinds for shape in QUICK]
    assert differences(tensors, measured(engine().measure(tensors, places_of(tensors), ALL))) == []


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_shape(kind: str, dtype: torch.dtype) -> None:
    tensors = [made(kind, shape, dtype) for shape in SHAPES]
    for programs in (1, 1000):  # many tiles for each, and one
        some = engine(tile=256, programs=programs)
        assert differences(tensors, measured(some.measure(tensors, places_of(tensors), ALL))) == []


@pytest.mark.long
@pytest.mark.parametrize("tile", [64, 4096])
def test_other_tiles(tile: int) -> None:
    kinds = (("tails", (100, 100)), ("some bad", (9000,)), ("zeros", (64, 129)))
    tensors = [made(kind, shape, torch.float32) for kind, shape in kinds]
    found = engine(tile=tile, programs=4).measure(tensors, places_of(tensors), ALL)
    assert differences(tensors, measured(found)) == []


def test_types_alignments_and_gaps_in_one_batch() -> None:
    base = normal(5000).float()
    tensors = [
        base[1:1302],
        None,
        base[3:8].bfloat16(),
        normal(5, 7, 3, 3).to(memory_format=torch.channels_last).float(),
        normal(40, 30).half()[1:],
        normal(600).bfloat16()[1:],
    ]
    assert differences(tensors, measured(engine().measure(tensors, places_of(tensors), ALL))) == []


def test_only_what_is_asked_for_is_given() -> None:
    tensors = [normal(40, 30).float()]
    found = measured(engine().measure(tensors, places_of(tensors), Wanted()))
    assert differences(tensors, found) == []
    assert found[1:] == (None,) * (len(found) - 1)


def test_large_tensors_of_which_a_sketch_takes_one_group_of_eight_and_shards_that_add_up() -> None:
    whole = normal(70, 1000).float()
    places = places_of([whole])
    wanted = Wanted(sketches=True, hashes=True)
    some = engine(tile=2048, programs=8)
    found = measured(some.measure([whole], places, wanted))
    assert differences([whole], found) == []
    cuts = ((0, 13), (13, 50), (50, 70))
    pieces = [whole[a:b].clone() for a, b in cuts]
    parts = measured(
        some.measure(
            pieces,
            Places(
                np.repeat(places.seeds, 3),
                np.array([a * 1000 for a, _ in cuts]),
                np.repeat(places.wholes, 3),
            ),
            wanted,
        )
    )
    assert found.sketches is not None
    assert found.hashes is not None
    assert parts.sketches is not None
    assert parts.hashes is not None
    np.testing.assert_allclose(parts.sketches.sum(0), found.sketches[0], rtol=1e-4, atol=1e-3)
    assert parts.hashes.sum(dtype=np.uint64) == found.hashes[0]


def test_the_same_bits_every_time() -> None:
    tensors = [normal(40, 130).float(), made("some bad", (3000,), torch.bfloat16)]
    sent = [engine(programs=4).measure(tensors, places_of(tensors), ALL) for _ in range(2)]
    first, second = ([part.clone() for part in one.parts] for one in sent)
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a[:, :15].numpy(), b[:, :15].numpy(), equal_nan=True)
        if a.dtype is torch.float64:
            assert np.array_equal(a[:, 16:55].numpy(), b[:, 16:55].numpy(), equal_nan=True)


def test_rows_are_remembered_from_step_to_step() -> None:
    x, y, z = normal(40, 6).float(), normal(3, 1250).float(), normal(1000, 1).float()
    x[3], x[17], x[20, :3], y[1], y[2, :1200], z[::7] = 0, 0, 0, 0, 0, 0
    tensors = [x, y, z]
    times, some, places = row_times(tensors), engine(), places_of(tensors)

    def counts(void: float | None = None) -> list[int]:
        number = None if void is None else torch.tensor([void])
        found = measured(some.measure(tensors, places, Wanted(rows=times, void=number)))
        assert found.dead_rows is not None
        assert found.untouched_rows is not None
        zero = [int((tensor.flatten(1) == 0).all(1).sum()) for tensor in tensors]
        assert void or found.records["zero_rows"].tolist() == zero
        assert found.dead_rows.tolist() == found.untouched_rows.tolist()  # before the window ends
        return list(found.untouched_rows.tolist())

    assert counts() == [2, 1, 143]
    x[3] = 1.0
    assert counts() == [1, 1, 143]
    y[:] = 0
    assert counts() == [1, 1, 143]
    x[17], y[:] = -1.0, -1.0
    assert counts(void=1.0) == [1, 1, 143]
    assert counts(void=0.0) == [0, 0, 143]
    assert times.now == 5
    times.now += 63
    tensors = [torch.zeros_like(tensor) for tensor in tensors]
    found = measured(some.measure(tensors, places, Wanted(rows=times)))
    assert found.dead_rows is not None
    assert found.untouched_rows is not None
    assert (found.dead_rows.tolist(), found.untouched_rows.tolist()) == ([40, 3, 1000], [0, 0, 143])


def test_bins_are_of_elements_times_the_factor() -> None:
    tensors = [normal(40, 30).float()]
    wanted = Wanted(histograms=True, factor=torch.tensor([8.0], dtype=torch.float64))
    moved = measured(engine().measure(tensors, places_of(tensors), wanted)).bins
    plain = measured(engine().measure(tensors, places_of(tensors), ALL)).bins
    assert moved is not None
    assert plain is not None
    assert moved[0].first_exponent == plain[0].first_exponent + 3
    assert np.array_equal(moved.counts, plain.counts)
