"""What the Triton engine will launch, read and keep: from the sizes of real models alone."""

from math import prod

import numpy as np
import pytest
from tests.record.device.triton_shapes import Shape, elements, gpt2, llama, read_to_measure

from gradwatch.record.device.triton_plan import MOST_TILES, TILE, planned, records_of

MODELS = [
    pytest.param(gpt2(), 124_439_808, id="gpt2"),
    pytest.param(llama(), 6_738_415_616, id="llama"),
]
COORDINATES = 4096


def sampled(shapes: list[Shape]) -> int:
    return sum(min(prod(shape), COORDINATES) for shape in shapes)


def in_rows_of_the_spread(shapes: list[Shape]) -> int:
    return sum(min(shape[0], 17) * prod(shape[1:]) for shape in shapes if len(shape) > 1)


@pytest.mark.parametrize(("shapes", "total"), MODELS)
def test_bytes_of_a_recorded_step(shapes: list[Shape], total: int) -> None:
    assert elements(shapes) == total
    sizes = [prod(shape) for shape in shapes]
    plain = sum(read_to_measure(size, TILE) for size in sizes)
    sketched = sum(read_to_measure(size, TILE, sketched=True) for size in sizes)
    assert plain <= 1.03 * total
    assert sketched <= 1.15 * total
    # Gradient and second moment whole, weights and gradient at the coordinates, the copy's too.
    step = 2 * total + 3 * sampled(shapes)
    assert sketched + step <= 3.2 * total
    weights = plain + 2 * in_rows_of_the_spread(shapes)
    assert sketched + step + weights <= 8 * total


@pytest.mark.parametrize("size", [1, 31, 576, 1000, TILE - 1])
def test_a_small_tensor_is_read_three_times_at_most(size: int) -> None:
    assert read_to_measure(size, TILE, sketched=True) <= 3 * size


@pytest.mark.parametrize(("shapes", "total"), MODELS)
def test_memory_that_is_kept(shapes: list[Shape], total: int) -> None:
    plan = planned([prod(shape) for shape in shapes], ["float32"] * len(shapes))
    times = 4 * sum(shape[0] for shape in shapes if len(shape) > 1)
    coordinates = 8 * sum(min(size, COORDINATES) for size in {prod(shape) for shape in shapes})
    # Times of rows twice: of gradients, and to count the zero rows of weights.
    kept = plan.kept_bytes + 2 * times + coordinates
    assert kept <= 45_000_000
    assert len(plan.classes) == 1


@pytest.mark.parametrize("programs", [1, 7, 10_000])
def test_every_element_is_in_one_stretch(programs: int) -> None:
    sizes = [1, 4096, 4097, 300, 70_000, 12]
    keys = ["a", "b", "a", "b", "a", "c"]
    plan = planned(sizes, keys, tile=128, programs=programs)
    assert 1 <= plan.tiles <= MOST_TILES
    assert sorted(plan.order) == list(range(len(sizes)))
    for line, given in enumerate(plan.order):
        stretches = plan.programs[plan.programs[:, 0] == line, 1]
        assert stretches.tolist() == list(range(len(stretches)))
        length = 128 * plan.tiles
        assert (len(stretches) - 1) * length < sizes[given] <= len(stretches) * length
        assert plan.programs[plan.starts[line], 0] == line
    for key, line, lines, program, count in plan.classes:
        assert {keys[plan.order[at]] for at in range(line, line + lines)} == {key}
        assert set(plan.programs[program : program + count, 0]) == set(range(line, line + lines))


def test_of_no_finite_element_nothing_is_known() -> None:
    numbers = np.zeros((1, 56))
    numbers[0, :3], numbers[0, 13:15] = (4, 0, 4), (np.inf, -np.inf)
    record = records_of(numbers)[0]
    assert record["nan"] == 4
    assert all(np.isnan(record[name]) for name in ("mean", "std", "norm", "min", "max"))
