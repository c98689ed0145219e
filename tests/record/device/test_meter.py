"""Rows of gradients, weights and updates, finished when the numbers have come over."""

import gc
import math
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.record.device.fakes import (
    Tracked,
    arrived,
    call,
    family,
    gradients,
    meter,
    parameters,
)
from tests.record.device.test_engine import normal, truth
from torch.multiprocessing.reductions import StorageWeakRef

from gradwatch.record.recorder import Found
from gradwatch.record.sampler import LossScaling
from gradwatch.stats import Family, State

ZERO_ROWS = ["grad_zero_rows", "grad_dead_rows", "grad_untouched_rows"]


# -- gradients -------------------------------------------------------------------------------------


def test_rows_and_states_of_gradients() -> None:
    some = [normal(9, 5), None, normal(100, 90), normal(3, dtype=torch.bfloat16)]
    tracked = Tracked(parameters(*some))
    made, _ = meter(tracked)
    found = gradients(made, tracked, full=True)
    rows, states = family(found, Family.GRAD)
    assert states == [State.MEASURED, State.NO_GRADIENT, State.SAMPLED, State.MEASURED]
    for i in (0, 2, 3):
        wanted = truth(some[i])
        assert rows["grad_norm"][i] == pytest.approx(wanted["norm"], rel=1e-5)
        assert rows["grad_count"][i] == wanted["count"]
    assert np.isnan(rows["grad_norm"][1])
    assert found.scalars == {}  # nothing is known of a scaler or of clipping
    assert found.tables == []  # no histograms on devices


def test_what_cannot_be_read_is_reported() -> None:
    tracked = Tracked(parameters(torch.eye(5).to_sparse(), normal(4)))
    made, recorder = meter(tracked)
    rows, states = family(gradients(made, tracked), Family.GRAD)
    assert states == [State.UNSUPPORTED, State.MEASURED]
    assert recorder.unreadable == [("gradient", "p0")]
    assert np.isnan(rows["grad_norm"][0])


def test_nothing_at_all_to_measure() -> None:
    for tensors in ([], parameters(None)):
        tracked = Tracked(tensors)
        made, _ = meter(tracked)
        _, states = family(gradients(made, tracked), Family.GRAD)
        assert states == [State.NO_GRADIENT] * len(tensors)


def test_what_waits_for_numbers_keeps_no_tensor_alive() -> None:
    tensors = parameters(normal(100, 100), normal(5))
    tracked = Tracked(tensors)
    made, _ = meter(tracked)
    one = call(tracked)
    made.snapshot()
    made.gradients(one)
    made.updates(one)
    made.weights(one.found, histograms=True)
    refs = [weakref.ref(p) for p in tensors] + [weakref.ref(p.grad) for p in tensors]
    memory = [StorageWeakRef(x.untyped_storage()) for p in tensors for x in (p, p.grad)]
    tracked.given.clear()
    del tensors, one.tracked
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
    assert all(one.expired() for one in memory)
    assert len(arrived(one.found).rows) == 3


def test_rows_that_are_zero_are_looked_at_on_every_fourth_recorded_step() -> None:
    for size in (5, 900):
        gradient = torch.ones(8, size)
        gradient[3:] = 0
        tracked = Tracked(parameters(gradient))
        made, _ = meter(tracked)
        seen = []
        for step in range(9):
            rows, _ = family(gradients(made, tracked, step), Family.GRAD)
            seen.append(rows[ZERO_ROWS][0].tolist())
            tracked.given[0].grad[3:5] = 1  # type: ignore[union-attr, index]
        assert seen == [(5, 5, 5)] * 4 + [(3, 3, 3)] * 5
        tracked.given[0].grad.zero_()  # type: ignore[union-attr]
        for step in range(9, 14):
            rows, _ = family(gradients(made, tracked, step), Family.GRAD)
        assert rows[ZERO_ROWS][0].tolist() == (8, 3, 3)


def test_cosines_to_the_gradient_recorded_before() -> None:
    tracked = Tracked(parameters(normal(100, 90), normal(4), normal(3)))
    made, _ = meter(tracked)
    rows, _ = family(gradients(made, tracked), Family.GRAD)
    assert np.isnan(rows["grad_cosine"]).all()
    a, b, c = (p.grad for p in tracked.given if p is not None)
    a.mul_(-3)
    b.copy_(torch.tensor([-b[1], b[0], -b[3], b[2]]))
    c[1] = math.nan
    rows, _ = family(gradients(made, tracked, 1), Family.GRAD)
    assert rows["grad_cosine"][:2] == pytest.approx([-1, 0], abs=1e-6)
    assert np.isnan(rows["grad_cosine"][2])


# -- scaling and clipping --------------------------------------------------------------------------


class Scaler:
    def __init__(self, scale: torch.Tensor) -> None:
        self._scale = scale


def changed(tracked: Tracked, factor: float) -> None:
    """As if the gradients were multiplied after backward."""
    p = tracked.given[0]
    was = p.grad.clone()
    p.grad.mul_(factor)
    tracked.was = [(was.reshape(-1)[:64], p.grad.reshape(-1)[:64])]


@pytest.mark.parametrize("shape", [(5, 4), (100, 90)])
def test_clipping_is_undone(shape: tuple[int, ...]) -> None:
    tracked = Tracked(parameters(normal(*shape)))
    made, _ = meter(tracked)
    changed(tracked, 0.3)
    found = gradients(made, tracked)
    rows, states = family(found, Family.GRAD)
    assert found.scalars == {"clip_factor": pytest.approx(0.3)}
    assert rows["grad_norm"][0] == pytest.approx(truth(normal(*shape))["norm"], rel=1e-5)
    assert states[0] in (State.MEASURED, State.SAMPLED)


def test_a_change_that_is_no_scaling_is_said() -> None:
    tracked = Tracked(parameters(normal(100, 90), normal(4)))
    made, _ = meter(tracked)
    changed(tracked, 1.0)
    tracked.was[0][1][0] += 1
    found = gradients(made, tracked)
    assert family(found, Family.GRAD)[1] == [State.CLIPPED] * 2
    assert found.scalars == {}


@pytest.mark.parametrize(("clip", "known"), [(1.0, True), (0.5, True), (0.3, True), (1.0, False)])
def test_a_loss_scale_that_was_taken_out_is_no_clipping(clip: float, known: bool) -> None:
    tracked = Tracked(parameters(normal(100, 90)))
    if known:
        scaler = Scaler(torch.tensor([65536.0]))
        tracked.sampler.scaling = LossScaling(scaler)
    made, _ = meter(tracked)
    tracked.given[0].grad.mul_(65536)  # type: ignore[union-attr]
    changed(tracked, clip / 65536)
    found = gradients(made, tracked)
    rows, _ = family(found, Family.GRAD)
    assert rows["grad_norm"][0] == pytest.approx(truth(normal(100, 90))["norm"], rel=1e-5)
    assert found.scalars == {"clip_factor": pytest.approx(clip)}


def test_gradients_a_fused_optimizer_holds_scaled() -> None:
    scale = torch.tensor(1024.0)
    optimizer = SimpleNamespace(grad_scale=scale, found_inf=torch.tensor(0.0), param_groups=[])
    tracked = Tracked(parameters(normal(5) * 1024), optimizer)
    scaler = Scaler(scale)
    tracked.sampler.scaling = LossScaling(scaler)
    changed(tracked, 1.0)
    made, _ = meter(tracked)
    found = gradients(made, tracked)
    rows, _ = family(found, Family.GRAD)
    assert rows["grad_norm"][0] == pytest.approx(truth(normal(5))["norm"], rel=1e-6)
    assert found.scalars == {"clip_factor": 1.0}
    rows, _ = family(gradients(made, tracked, 1, closure=True), Family.GRAD)
    assert rows["grad_norm"][0] == pytest.approx(1024 * truth(normal(5))["norm"], rel=1e-6)


def test_an_overflow_that_the_device_found_skips_the_step_late() -> None:
    optimizer = SimpleNamespace(
        grad_scale=torch.tensor(8.0), found_inf=torch.tensor(1.0), param_groups=[]
    )
    tracked = Tracked(parameters(torch.tensor([math.inf, 1.0])), optimizer)
    made, _ = meter(tracked)
    one = call(tracked, 5)
    made.snapshot()
    made.gradients(one)
    made.updates(one)
    assert not made.is_skipped()
    found = arrived(one.found)
    assert found.skipped
    assert found.scalars == {"skipped": 1.0}
    for each in (Family.GRAD, Family.UPDATE):
        assert family(found, each)[1] == [State.SKIPPED_STEP]


def test_parameters_of_no_optimizer_have_no_scalars() -> None:
    own, other = Tracked(parameters(normal(4))), Tracked(parameters(normal(5)))
    changed(own, 0.5)
    made, _ = meter(own)
    found = gradients(made, other)
    rows, _ = family(found, Family.GRAD)
    assert found.scalars == {}
    assert rows["grad_norm"][0] == pytest.approx(0.5 * truth(normal(4))["norm"], rel=1e-6)


# -- weights and updates ---------------------------------------------------------------------------


def weights(*tensors: torch.Tensor) -> tuple[Any, list[State]]:
    made, _ = meter(Tracked(tensors))
    found = Found(3)
    made.weights(found, histograms=True)
    found = arrived(found)
    assert found.tables == []
    return family(found, Family.WEIGHT)


def test_weights_and_the_spread_of_their_rows() -> None:
    equal, large = normal(1, 90).repeat(100, 1), normal(120, 80)
    large[5] = 0
    rows, states = weights(equal, large, normal(4, 6), normal(4))
    assert states == [State.SAMPLED] * 2 + [State.MEASURED] * 2
    assert rows["weight_norm"][1] == pytest.approx(truth(large)["norm"], rel=1e-5)
    assert rows["weight_zero_rows"].tolist() == [0, 1, 0, 0]
    spread = rows["weight_row_spread"]
    assert spread[0] == 0
    assert (spread[1:3] > 0.5).all()
    assert np.isnan(spread[3])


def test_equal_weights_have_equal_hashes_and_others_have_not() -> None:
    large, missed = normal(100, 90), normal(100, 90)
    missed[0, 1] += 0.5  # the sample does not see it, the norms do
    small, other = normal(6), normal(6)
    other[3] = other[3].nextafter(torch.tensor(9.0))
    a, b, c, d, e, f = weights(large, large.clone(), missed, small, other, torch.zeros(3))[0][
        "weight_hash"
    ]
    assert a == b
    assert len({a, c, d, e, f, 0}) == 6
    unread, _ = weights(torch.eye(5).to_sparse())
    assert unread["weight_hash"].tolist() == [0]


def stepped(tracked: Tracked, move: float, step: int = 0) -> Found:
    made, _ = meter(tracked)
    made.snapshot()
    one = call(tracked, step)
    with torch.no_grad():
        for p in tracked.given:
            if p is not None:
                p.add_(move)
    made.updates(one)
    return arrived(one.found)


def test_updates_are_compared_on_the_host() -> None:
    large = normal(100, 90).requires_grad_()
    low = torch.full((50,), 256.0, dtype=torch.bfloat16, requires_grad=True)
    image = normal(16, 8, 9, 9).to(memory_format=torch.channels_last).requires_grad_()
    for p in (large, low, image):
        p.grad = torch.ones(p.shape, dtype=p.dtype)  # the image's in another memory order
    tracked = Tracked([large, low, image, None])
    rows, states = family(stepped(tracked, 0.25), Family.UPDATE)
    assert states == [State.SAMPLED, State.MEASURED, State.SAMPLED, State.NO_GRADIENT]
    assert rows["update_norm"][0] == pytest.approx(0.25 * math.sqrt(9000), rel=1e-6)
    assert rows["update_lost_fraction"][:3].tolist() == [0, 1, 0]
    ratio = 0.25 * math.sqrt(9000) / truth(normal(100, 90))["norm"]
    assert rows["update_ratio"][0] == pytest.approx(ratio, rel=0.1)
