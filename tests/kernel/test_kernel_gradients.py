"""What looks at the gradients of a step: every operation against its definition, in C and numpy."""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernel import reference
from tests.kernel.looking import (
    CHANGED,
    DTYPES,
    NONE,
    SCALED,
    TYPES,
    UNKNOWN,
    Recorded,
    cosine,
    differences,
    filled,
    look,
    numbers,
    parameter,
    places,
    record,
    wanted,
)
from tests.kernel.reference import counters

from gradwatch import kernel
from gradwatch.kernel import Gradients
from gradwatch.stats import State

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
SHAPES = ((7, 5), (12,), (3, 4, 2, 2), (300, 41), (1,), (), (64, 1))


@pytest.fixture(params=["exchange", "asking"], autouse=True)
def way(request: pytest.FixtureRequest, instruction_set: str) -> Iterator[None]:
    """C sees tensors through DLPack or by asking them; numpy only asks."""
    if instruction_set == "none" and request.param == "exchange":
        pytest.skip("numpy asks")
    kernel.use_exchange(EXCHANGE if request.param == "exchange" else None)
    yield
    kernel.use_exchange(EXCHANGE)


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multiplier", [1.0, 0.25, 3.7])
def test_rows_match_their_definition(dtype: torch.dtype, multiplier: float) -> None:
    parameters = [parameter(*shape, dtype=dtype) for shape in SHAPES]
    for seed, p in enumerate(parameters):
        p.grad = filled(*p.shape, dtype=dtype, seed=seed)
    parameters[0].grad[[1, 4]] = 0.0
    parameters[0].grad[2] = -0.0
    parameters[1].grad[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    parameters[2].grad.fill_(0.25)
    seen = record(look(parameters), len(parameters), multiplier=multiplier)
    assert seen.measured
    assert seen.states == [State.MEASURED] * len(parameters)
    for row, p in zip(seen.rows, parameters, strict=True):
        assert not differences(row, wanted(p.grad, multiplier)), p.shape
    assert seen["zero_rows"][:2] == [3, 0]


def test_dead_and_untouched_rows_over_seventy_steps() -> None:
    generator = np.random.default_rng(3)
    shapes = [(6, 3), (4,), (9, 2), (5, 1)]
    parameters = [parameter(*shape) for shape in shapes]
    looked = look(parameters)
    history: list[list[np.ndarray]] = [[] for _ in shapes]
    for step in range(70):
        for p, marks in zip(parameters, history, strict=True):
            there = generator.random(p.shape[0]) < (0.3 if step < 3 else 0.01)
            p.grad = torch.zeros(p.shape)
            p.grad.reshape(p.shape[0], -1)[:, -1] = torch.from_numpy(there * -1e-30)
            if step % 5 == 2:  # the step without a gradient touches nothing
                p.grad, there = None, np.zeros(p.shape[0], bool)
            marks.append(there)
        seen = record(looked, len(parameters))
        for i, marks in enumerate(history):
            matrix = len(shapes[i]) > 1 and parameters[i].grad is not None
            dead = (~np.any(marks[-64:], axis=0)).sum() if matrix else 0
            never = (~np.any(marks, axis=0)).sum() if matrix else 0
            assert (seen["dead_rows"][i], seen["untouched_rows"][i]) == (dead, never), (step, i)
    assert seen["dead_rows"] > seen["untouched_rows"], "the window did not matter"


def test_rows_of_another_shape_touch_nothing() -> None:
    p = parameter(4, 3)
    looked = look([p])
    p.grad = torch.eye(4, 3)
    assert record(looked, 1)["untouched_rows"] == [1]
    p.data, p.grad = torch.zeros(2, 3), None
    p.grad = torch.ones(2, 3)
    assert record(looked, 1)["untouched_rows"] == [1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosines_are_those_of_the_sample(dtype: torch.dtype) -> None:
    shapes = [(7,), (1024,), (1025,), (60, 50), (300, 301)]
    parameters = [parameter(*shape, dtype=dtype) for shape in shapes]
    looked, last = look(parameters), None
    for step in range(4):
        for seed, p in enumerate(parameters):
            new = filled(*p.shape, dtype=dtype, seed=10 * step + seed)
            p.grad = new if p.grad is None else (0.8 * p.grad + 0.2 * new).to(dtype)
        seen = record(looked, len(parameters), multiplier=1.0 + step)["cosine"]
        if last is None:
            assert np.isnan(seen).all()
        else:
            for a, p, value in zip(last, parameters, seen, strict=True):
                assert value == pytest.approx(cosine(a, p.grad), rel=2e-5, abs=2e-6)
        last = [p.grad.clone() for p in parameters]


def test_where_there_is_no_cosine() -> None:
    p = parameter(2000)
    looked = look([p])

    def seen(gradient: torch.Tensor | None, *, cosines: bool = True) -> float:
        p.grad = gradient
        return record(looked, 1, cosines=cosines)["cosine"][0]

    a, b = filled(2000), filled(2000, seed=1)
    assert math.isnan(seen(a))
    assert seen(None) != 0.0
    assert seen(2.0 * a) == pytest.approx(1.0), "a step without a gradient does not interrupt"
    assert math.isnan(seen(b, cosines=False))
    assert seen(-a) == pytest.approx(-1.0), "what is not compared is not kept"
    assert math.isnan(seen(torch.zeros(2000)))
    assert math.isnan(seen(a))
    assert math.isnan(seen(torch.full((2000,), math.nan)))
    assert math.isnan(seen(a))
    p.grad = None
    p.data = torch.zeros(2001)
    assert math.isnan(seen(torch.ones(100_000)[:2001] * 0.5)) or p.numel() == 2001


def test_a_sample_stands_for_the_whole() -> None:
    """Also where only some rows or columns have a gradient: a stride would fall into their step."""
    for lines in (slice(None), (slice(None), slice(0, 512, 8))):
        p = parameter(512, 512)
        looked, found = look([p]), []
        for seed in range(2):
            p.grad = torch.zeros(512, 512)
            p.grad[lines] = (filled(512, 512) + filled(512, 512, seed=seed + 1))[lines]
            found.append(p.grad)
            seen = record(looked, 1)["cosine"][0]
        truth = torch.nn.functional.cosine_similarity(*(g.reshape(1, -1) for g in found)).item()
        assert seen == pytest.approx(truth, abs=0.2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("multiplier", [1.0, 8.0, 2.0**-5, 3.7])
def test_histograms_are_of_the_multiplied_elements(dtype: torch.dtype, multiplier: float) -> None:
    generator = np.random.default_rng(1)
    parameters = []
    for size in (1, 50, 5000, 20_000):
        # Away from the edges of bins, where rounding would decide.
        raw = generator.uniform(1.1, 1.9, size) * 2.0 ** generator.integers(-6, 6, size)
        raw *= generator.choice([-1.0, 1.0], size)
        p = parameter(size, dtype=dtype)
        p.grad = torch.from_numpy(raw / multiplier).to(dtype)
        parameters.append(p)
    parameters[2].grad[:7] = torch.tensor([0, 0, math.nan, math.inf, -math.inf, -math.inf, -0.0])
    parameters += [parameter(0, dtype=dtype), parameter(3, dtype=dtype)]
    parameters[-2].grad = torch.zeros(0, dtype=dtype)
    seen = record(look(parameters), 6, bins=True, multiplier=multiplier)
    assert seen.odd.tolist() == [[0] * 4, [0] * 4, [3, 1, 1, 2], [0] * 4, [0] * 4, [0] * 4]
    tables = list(seen.bins)
    for p, bins in zip(parameters, tables, strict=True):
        values = np.zeros(0) if p.grad is None else numbers(p.grad) * multiplier
        assert counters(bins) == reference.bins(values)
        for edge in (0, -1):
            assert not len(bins.negative) or bins.negative[edge] + bins.positive[edge] > 0
    assert sum(len(bins.negative) for bins in tables) > 20


def test_mirrored_gradients_are_counted() -> None:
    values = ([0.5, -0.5, 0.1], [0.5, 0.1, -0.4], [0.0, 0.0, 0.0], [-2.0, 2.0, math.nan])
    parameters = [parameter(3) for _ in values]
    for p, value in zip(parameters, values, strict=True):
        p.grad = torch.tensor(value)
    assert record(look(parameters), 4).mirrored == 2


# -- what happened since backward ------------------------------------------------------------------


def sampled(dtype: torch.dtype = torch.float32) -> tuple[Gradients, list[torch.nn.Parameter]]:
    """Three parameters with gradients, of which the first two have been sampled."""
    parameters = [parameter(*shape, dtype=dtype) for shape in ((30, 40), (5,), (9, 9))]
    for seed, p in enumerate(parameters):
        p.grad = filled(*p.shape, dtype=dtype, seed=seed)
    looked = look(parameters)
    assert looked.sample(0)
    assert looked.sample(1)
    return looked, parameters


def every(change: Callable[[torch.Tensor], Any]) -> Callable[[list[torch.nn.Parameter]], None]:
    def act(parameters: list[torch.nn.Parameter]) -> None:
        for p in parameters:
            change(p.grad)

    return act


def by_own_norm(parameters: list[torch.nn.Parameter]) -> None:
    for p in parameters:
        torch.nn.utils.clip_grad_norm_([p], 0.1)


def only_the_first(parameters: list[torch.nn.Parameter]) -> None:
    parameters[0].grad.mul_(0.5)


def none_left(parameters: list[torch.nn.Parameter]) -> None:
    for p in parameters:
        p.grad = None


def never_sampled(parameters: list[torch.nn.Parameter]) -> None:
    parameters[2].grad.mul_(0.1)


def a_new_tensor(parameters: list[torch.nn.Parameter]) -> None:
    for p in parameters:
        p.grad = p.grad * 0.5


CHANGES = {
    "nothing": (lambda _: None, NONE, 1.0, True),
    "one that is not sampled": (never_sampled, NONE, 1.0, True),
    "by one factor": (every(lambda g: g.mul_(0.3)), SCALED, 0.3, False),
    "by a factor above one": (every(lambda g: g.mul_(3.0)), SCALED, 3.0, False),
    "doubled": (every(lambda g: g.mul_(2.0)), SCALED, 2.0, True),
    "halved": (every(lambda g: g.mul_(0.5)), SCALED, 0.5, True),
    "halved into another tensor": (a_new_tensor, SCALED, 0.5, True),
    "each by its own norm": (by_own_norm, CHANGED, 1.0, False),
    "only one of them": (only_the_first, CHANGED, 1.0, False),
    "by value": (every(lambda g: g.clamp_(-0.5, 0.5)), CHANGED, 1.0, False),
    "set to zero": (every(lambda g: g.zero_()), CHANGED, 1.0, False),
    "sign turned": (every(lambda g: g.neg_()), CHANGED, 1.0, False),
    "something added": (every(lambda g: g.add_(0.01)), CHANGED, 1.0, False),
    "taken away": (none_left, UNKNOWN, 1.0, True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CHANGES)
def test_what_happened_to_gradients_is_told(name: str, dtype: torch.dtype) -> None:
    change, kind, factor, exact = CHANGES[name]
    looked, parameters = sampled(dtype)
    change(parameters)
    seen = record(looked, 3)
    assert (seen.kind, seen.exact) == (kind, exact)
    assert seen.factor == pytest.approx(factor, rel=1e-2 if dtype is torch.bfloat16 else 1e-3)
    if kind == CHANGED:
        assert seen.states == [State.CLIPPED] * 3
        assert not differences(seen.rows[0], wanted(parameters[0].grad))


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("factor", [1.0, 0.3, 2.0, 3.0])
def test_a_factor_and_the_scale_are_taken_out_of_the_rows(factor: float, scale: float) -> None:
    looked, parameters = sampled()
    raw = [p.grad / scale for p in parameters]
    if factor != 1.0:
        every(lambda g: g.mul_(factor))(parameters)
    seen = record(looked, 3, scale=scale)
    assert seen.measured
    for row, gradient in zip(seen.rows, raw, strict=True):
        assert not differences(row, wanted(gradient))
    assert seen.states == [State.MEASURED] * 3


@pytest.mark.parametrize(
    ("factor", "scale"), [(0.3, 0.0), (2.0, 0.0), (0.5, 1.0), (2.0**-16, 8.0), (1e-4, 1.0)]
)
def test_a_doubtful_factor_is_left_to_the_caller(factor: float, scale: float) -> None:
    looked, parameters = sampled()
    raw = parameters[2].grad.clone()
    every(lambda g: g.mul_(factor))(parameters)
    seen = record(looked, 3, scale=scale)
    assert (seen.measured, seen.others, seen.kind) == (False, None, SCALED)
    assert seen.factor == pytest.approx(factor)
    again = record(looked, 3, multiplier=1.0 / seen.factor)
    assert again.measured
    assert (again.kind, again.factor, again.exact) == (SCALED, seen.factor, seen.exact)
    assert not differences(again.rows[2], wanted(raw))
    as_it_is = record(looked, 3, multiplier=1.0)
    assert not differences(as_it_is.rows[2], wanted(parameters[2].grad))


@pytest.mark.parametrize(("scale", "divided"), [(1.0, 1.0), (8.0, 8.0), (0.0, 1.0)])
def test_what_cannot_be_undone_is_divided_by_the_scale_alone(scale: float, divided: float) -> None:
    looked, parameters = sampled()
    every(lambda g: g.clamp_(-0.5, 0.5))(parameters)
    seen = record(looked, 3, scale=scale)
    assert (seen.kind, seen.states) == (CHANGED, [State.CLIPPED] * 3)
    for row, p in zip(seen.rows, parameters, strict=True):
        assert not differences(row, wanted(p.grad / divided))


def test_elements_that_are_not_finite_say_nothing() -> None:
    looked, parameters = sampled()
    parameters[1].grad[:2] = torch.tensor([math.inf, math.nan])
    assert looked.sample(1)
    assert record(looked, 3).kind == NONE
    every(lambda g: g.mul_(0.25))(parameters)
    seen = record(looked, 3)
    assert (seen.kind, seen.factor, seen.exact) == (SCALED, 0.25, True)
    parameters[0].grad.fill_(math.nan)
    parameters[1].grad.fill_(math.nan)
    assert record(looked, 3).kind == UNKNOWN


def test_zeros_say_nothing_about_a_factor() -> None:
    looked, parameters = sampled()
    parameters[1].grad.zero_()
    assert looked.sample(1)
    every(lambda g: g.mul_(0.25))(parameters)
    seen = record(looked, 3)
    assert (seen.kind, seen.factor) == (SCALED, 0.25)
    parameters[1].grad.fill_(0.1)
    assert record(looked, 3).kind == CHANGED


def test_only_the_sampled_elements_are_compared() -> None:
    p = parameter(1000)
    p.grad = filled(1000)
    looked, kept = look([p]), places(1000, 64)
    assert looked.sample(0)
    p.grad[[i for i in range(1000) if i not in kept]] = 7.0
    assert record(looked, 1).kind == NONE
    p.grad[kept[17]] += 1.0
    assert record(looked, 1).kind == CHANGED


def test_a_later_sample_takes_the_place_of_the_first_and_forgetting_drops_both() -> None:
    looked, parameters = sampled()
    every(lambda g: g.add_(0.01))(parameters)
    assert looked.sample(0)
    assert looked.sample(1)
    assert record(looked, 3).kind == NONE
    every(lambda g: g.add_(0.01))(parameters)
    looked.forget()
    seen = record(looked, 3)
    assert (seen.kind, seen.states) == (NONE, [State.MEASURED] * 3)


def test_what_cannot_be_sampled() -> None:
    p = parameter(6, 5)
    looked = look([p])
    assert not looked.sample(0)
    p.grad = torch.ones(6, 5).to_sparse()
    assert not looked.sample(0)
    p.grad = None
    assert record(looked, 1).kind == NONE


# -- weights that somebody else has set ------------------------------------------------------------


def test_weights_that_change_between_steps_are_found() -> None:
    parameters = [torch.nn.Parameter(filled(n, seed=n)) for n in (10, 300, 64, 5)]
    looked = look(parameters)
    assert record(looked, 4).outside is None
    looked.keep_weights(0, 4, 16)
    assert record(looked, 4).outside == []
    assert looked.changed_weights() is None, "they were dropped"
    looked.keep_weights(0, 4, 16)
    with torch.no_grad():
        parameters[1].neg_()
        parameters[2].zero_()
        parameters[3].mul_(1.5)
    seen = dict(record(looked, 4).outside or [])
    assert seen == {1: pytest.approx(2.0), 2: pytest.approx(1.0), 3: pytest.approx(1 / 3)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("most", [16, 64])
def test_how_far_a_weight_is_off(dtype: torch.dtype, most: int) -> None:
    p = torch.nn.Parameter(filled(40, 50, dtype=dtype))
    looked = look([p])
    looked.keep_weights(0, 1, most)
    before, kept = numbers(p), places(2000, most)
    with torch.no_grad():
        p.add_(filled(40, 50, dtype=dtype, seed=1))
    a, b = before[kept], numbers(p)[kept]
    distance = np.linalg.norm(b - a) / max(np.linalg.norm(a), np.linalg.norm(b))
    assert looked.changed_weights() == [(0, pytest.approx(distance))]
    looked.keep_weights(0, 1, most)
    with torch.no_grad():
        p.view(-1)[[i for i in range(2000) if i not in kept]] = 9.0
    assert looked.changed_weights() == []


def test_parameters_are_kept_by_turns() -> None:
    parameters = [torch.nn.Parameter(filled(8, seed=i)) for i in range(5)]
    looked = look(parameters)
    for first, count, found in ((1, 2, [1, 2]), (4, 3, [0, 1, 4]), (13, 99, [0, 1, 2, 3, 4])):
        looked.keep_weights(first, count, 16)
        with torch.no_grad():
            for p in parameters:
                p.add_(1.0)
        assert sorted(i for i, _ in looked.changed_weights() or []) == found


def test_weights_that_cannot_be_compared_are_left_out() -> None:
    parameters = [torch.nn.Parameter(filled(8, seed=i)) for i in range(4)]
    looked = look(parameters)
    looked.keep_weights(0, 4, 16)
    parameters[0].data = torch.zeros(9)
    parameters[1].data = torch.zeros(8, dtype=torch.float64)
    parameters[2].data = torch.full((8,), math.nan)
    del parameters[3]
    gc.collect()
    assert looked.changed_weights() == [(2, 0.0)], "it has changed, how far nobody can say"


# -- gradients that are not there or not ordinary --------------------------------------------------


class Sharded:
    """What a DTensor is to the kernel: something with a plain tensor inside."""

    def __init__(self, piece: Any) -> None:
        self._local_tensor = piece


class Other(torch.Tensor):
    """A subclass of which nobody knows what it means."""


def freed(*shape: int) -> torch.Tensor:
    tensor = filled(*shape)
    tensor.untyped_storage().resize_(0)
    return tensor


NOT_ORDINARY = {
    "sparse": lambda: torch.eye(6, 5).to_sparse(),
    "turned": lambda: filled(5, 6).t(),
    "with gaps": lambda: filled(6, 10)[:, ::2],
    "repeated": lambda: filled(6, 1).expand(6, 5),
    "freed": lambda: freed(6, 5),
    "meta": lambda: torch.zeros(6, 5, device="meta"),
    "whole numbers": lambda: torch.ones(6, 5, dtype=torch.int32),
    "complex": lambda: torch.ones(6, 5, dtype=torch.complex64),
    "a subclass": lambda: filled(6, 5).as_subclass(Other),
    "a shard that is none": lambda: Sharded(filled(5, 6).t()),
    "a shard in a shard": lambda: Sharded(Sharded(filled(6, 5))),
    "no tensor": lambda: "gradient",
}


@pytest.mark.parametrize("name", NOT_ORDINARY)
def test_what_is_not_ordinary_is_handed_to_the_caller(name: str) -> None:
    first, second = SimpleNamespace(grad=NOT_ORDINARY[name]()), parameter(3, 2)
    second.grad = torch.ones(3, 2)
    holders = [lambda: first, weakref.ref(second)]
    looked = kernel.gradients(holders, [6, 3], TYPES, DTYPES)
    seen = record(looked, 2)
    assert (seen.measured, seen.others) == (False, [0])
    seen = record(looked, 2, given={0: None})
    assert (seen.measured, seen.others) == (True, None)
    assert seen.states == [State.UNSUPPORTED, State.MEASURED]
    assert math.isnan(seen["norm"][0])
    assert (seen["count"][0], seen["dead_rows"][0]) == (0, 0)
    assert seen["norm"][1] == pytest.approx(math.sqrt(6))
    readable = filled(6, 5, seed=4)
    seen = record(looked, 2, given={0: readable})
    assert seen.states == [State.MEASURED] * 2
    assert not differences(seen.rows[0], wanted(readable))
    assert seen["dead_rows"] == [0, 0]


ORDINARY: dict[str, Callable[[], torch.Tensor]] = {
    "channels last": lambda: filled(6, 5, 4, 4).to(memory_format=torch.channels_last),
    "three dimensions turned": lambda: filled(6, 3, 5).transpose(1, 2),
    "one row, turned": lambda: filled(5, 1).t(),
    "rows in the middle of a storage": lambda: filled(20, 5)[4:10],
    "without elements": lambda: torch.zeros(0),
    "rows without elements": lambda: torch.zeros(6, 0),
    "no rows": lambda: torch.zeros(0, 5),
    "one number": lambda: torch.tensor(2.0),
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("shard", [False, True])
def test_what_is_dense_is_read_where_it_lies(name: str, shard: bool) -> None:
    gradient = ORDINARY[name]()
    if gradient.dim() > 2:
        gradient[1] = 0.0
    holder = SimpleNamespace(grad=Sharded(gradient) if shard else gradient)
    rows = gradient.shape[0] if gradient.dim() > 1 and gradient.numel() else 0
    looked = kernel.gradients([lambda: holder], [rows], TYPES, DTYPES)
    assert looked.sample(0)
    seen = record(looked, 1)
    assert (seen.states, seen.kind) == ([State.MEASURED], NONE)
    assert not differences(seen.rows[0], wanted(gradient))
    assert seen["dead_rows"] == seen["untouched_rows"] == seen["zero_rows"]


def test_weights_of_a_sharded_parameter_are_compared() -> None:
    piece = filled(30)
    holder = Sharded(piece)
    looked = kernel.gradients([lambda: holder], [0], TYPES, DTYPES)
    looked.keep_weights(0, 1, 16)
    piece.neg_()
    assert looked.changed_weights() == [(0, pytest.approx(2.0))]


def test_there_is_no_row_without_a_gradient() -> None:
    parameters = [parameter(4, 2), parameter(3)]
    parameters[1].grad = torch.ones(3)
    seen = record(look(parameters), 2, bins=True)
    assert seen.states == [State.NO_GRADIENT, State.MEASURED]
    for name in seen.rows.dtype.names or ():
        value = seen.rows[name][0]
        assert value == 0 if seen.rows[name].dtype.kind == "u" else math.isnan(value)


def test_memory_that_has_gone_since_is_not_read() -> None:
    p = parameter(1000, 100)
    p.grad = filled(1000, 100)
    looked = look([p])
    assert record(looked, 1).measured
    for size in (4, 0):
        p.grad.untyped_storage().resize_(size)
        assert record(looked, 1).others == [0]
        assert not looked.sample(0)
        assert record(looked, 1, given={0: None}).states == [State.UNSUPPORTED]


def test_another_tensor_on_each_step_is_looked_at_anew() -> None:
    p = parameter(50)
    looked = look([p])
    for value, size in ((1.0, 50), (2.0, 50), (3.0, 8), (4.0, 4000)):
        p.grad = None
        p.data = torch.zeros(size)
        p.grad = torch.full((size,), value)
        seen = record(looked, 1)
        assert (seen["max"], seen["count"]) == ([value], [size])


def test_nothing_is_kept_alive() -> None:
    parameters = [parameter(30, 40), parameter(5)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    looked = look(parameters)
    assert looked.sample(0)
    looked.keep_weights(0, 2, 16)
    record(looked, 2)
    gone, gradient = weakref.ref(parameters[0]), weakref.ref(parameters[0].grad)
    given = parameter(2)
    other = weakref.ref(given)
    parameters[1].grad = torch.ones(5).to_sparse()
    record(looked, 2, given={1: given})
    looked.keep_weights(0, 2, 16)
    del parameters[0], given, p
    gc.collect()
    assert (gone(), gradient(), other()) == (None, None, None)
    assert looked.changed_weights() == []
    seen = record(looked, 2, given={1: None})
    assert seen.states == [State.NO_GRADIENT, State.UNSUPPORTED]


def test_an_optimizer_without_parameters() -> None:
    looked = look([])
    looked.keep_weights(0, 64, 16)
    seen = record(looked, 0, bins=True)
    assert (seen.measured, seen.kind, seen.outside) == (True, NONE, None)


def test_numpy_and_c_agree(instruction_set: str) -> None:
    """Over steps of everything at once: counts, states and kinds to the bit."""
    made: list[list[Recorded]] = []
    for name in (instruction_set, "none"):
        kernel.select(name)
        generator = torch.Generator().manual_seed(5)
        parameters = [
            torch.nn.Parameter(filled(*shape, dtype=dtype)) for shape in SHAPES for dtype in DTYPES
        ]
        looked, found = look(parameters), []
        for step in range(6):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float32).to(p.dtype)
                p.grad *= torch.rand(p.shape, generator=generator) > 0.6
                if torch.rand((), generator=generator) < 0.1:
                    p.grad = None
            for i in range(0, len(parameters), 5):
                looked.sample(i)
            if step % 2:
                torch.nn.utils.clip_grad_norm_([p for p in parameters if p.dtype is DTYPES[0]], 1.0)
            found.append(record(looked, len(parameters), bins=True, multiplier=None))
            looked.forget()
            looked.keep_weights(step, 9, 32)
            with torch.no_grad():
                parameters[step].add_(0.5)
        made.append(found)
    kernel.select(instruction_set)
    for ours, theirs in zip(*made, strict=True):
        assert ours.states == theirs.states
        assert (ours.measured, ours.kind, ours.mirrored) == (
            theirs.measured,
            theirs.kind,
            theirs.mirrored,
        )
        if ours.measured:
            for column in ours.rows.dtype.names or ():
                np.testing.assert_allclose(
                    ours.rows[column], theirs.rows[column], rtol=2e-5, atol=2e-5, err_msg=column
                )
