"""What `vanishing-gradient` finds, and what it leaves alone."""

import numpy as np
import pytest
from tests.checks.shapes import (
    FALLING,
    NAMES,
    STUCK,
    Severity,
    gradients,
    make_run,
    only,
    quiet,
    said,
    table,
    weight,
)

from gradwatch.run import Run, Subject
from gradwatch.stats import Kind


def test_vanishing_names_the_starved_layer_first() -> None:
    finding = only("vanishing-gradient", gradients(1e-9, 1e-6, 1.0))
    assert finding.layers == ("in", "mid")
    assert finding.severity is Severity.WARNING
    assert "in" in finding.message
    assert "1.0e-09" in finding.message


def test_vanishing_is_quiet_where_layers_differ_a_little() -> None:
    assert not said("vanishing-gradient", gradients(0.05, 0.3, 1.0))


def test_vanishing_at_the_border_is_only_mentioned() -> None:
    assert only("vanishing-gradient", gradients(2e-4, 0.3, 1.0)).severity is Severity.INFO
    assert only("vanishing-gradient", gradients(9e-5, 0.3, 1.0)).severity is Severity.WARNING


def test_vanishing_leaves_embeddings_frozen_and_zero_gradients_out() -> None:
    subjects = [
        weight("emb", module="Embedding"),
        weight("rest", frozen=True),
        weight("nil"),
        weight("out"),
    ]
    run = make_run({"grad_norm": table([1e-9, 1e-9, 0.0, 1.0], 40)}, subjects=subjects)
    assert not said("vanishing-gradient", run)


def test_vanishing_judges_only_the_time_before_convergence() -> None:
    fading = np.where(np.arange(200) < 30, 0.3, 1e-7)
    loss = np.where(np.arange(200) < 30, 1.0, 0.001)
    run = make_run(
        {"grad_norm": table([fading, 1.0], 200)}, names=NAMES[:2], scalars={"loss": loss}
    )
    assert not said("vanishing-gradient", run)


def test_vanishing_in_a_network_that_learnt_is_only_mentioned() -> None:
    columns, loss = table([1e-9, 1.0], 60), np.geomspace(2.0, 0.05, 60)
    learnt = make_run({"grad_norm": columns}, names=NAMES[:2], scalars={"loss": loss})
    assert quiet("vanishing-gradient", learnt)
    stuck = make_run({"grad_norm": columns}, names=NAMES[:2], scalars={"loss": np.full(60, 2.0)})
    assert not quiet("vanishing-gradient", stuck)


# -- all layers together ---------------------------------------------------------------------------


def test_vanishing_where_no_layer_is_stronger() -> None:
    finding = only("vanishing-gradient", gradients(1e-30, 2e-30, 1.5e-30))
    assert finding.severity is Severity.CRITICAL
    assert set(finding.layers) == {"in", "mid", "out"}
    assert "all gradients are next to nothing" in finding.message


def test_vanishing_of_a_single_faint_layer_and_none_of_a_single_sound_one() -> None:
    assert not quiet("vanishing-gradient", Run.from_norms({"a": [1e-30] * 20}))
    assert not said("vanishing-gradient", Run.from_norms({"a": [1e-3] * 20}))


def test_small_gradients_are_left_alone() -> None:
    assert not said("vanishing-gradient", gradients(1e-12, 2e-12, 3e-12))
    assert not said("vanishing-gradient", gradients(9e-20, 9e-20, 9e-20))  # RMS 2e-20: above


def test_faint_gradients_that_train_are_only_mentioned() -> None:
    assert quiet("vanishing-gradient", gradients(1e-30, 1e-30, 1e-30, scalars={"loss": FALLING}))


FADING = np.geomspace(1, 1e-12, 60)


@pytest.mark.parametrize("loss", [None, STUCK, STUCK * 1.5])
def test_vanishing_where_all_fade_together(loss: np.ndarray | None) -> None:
    scalars = {} if loss is None else {"loss": loss}
    finding = only("vanishing-gradient", gradients(FADING, FADING, FADING, scalars=scalars))
    assert finding.severity is Severity.WARNING
    assert "all gradients fade together" in finding.message
    known = "no loss was logged" if loss is None else "although the loss has not fallen"
    assert known in finding.message
    assert set(finding.layers) == {"in", "mid", "out"}
    assert 30 < finding.first_step < 50


def test_fading_with_the_loss_is_convergence() -> None:
    for loss in (STUCK * FADING, FALLING, np.linspace(1.6, 1.3, 60)):
        run = gradients(FADING, FADING, FADING, scalars={"loss": loss})
        assert not said("vanishing-gradient", run)


def test_fading_by_six_decades_is_left_alone() -> None:
    column = np.geomspace(1, 1e-6, 60)
    assert not said("vanishing-gradient", gradients(column, column, column))
    settled = np.where(np.arange(60) < 10, 1e6, 1e-3)  # a bad start, then an ordinary gradient
    assert not said("vanishing-gradient", gradients(settled, settled, settled))


def test_unscaled_gradients_of_half_precision_are_left_alone() -> None:
    random = np.random.default_rng(3)
    columns = 1e-6 * random.lognormal(0, 0.5, (200, 3))
    skipped = np.zeros(200)
    skipped[[0, 1, 2, 90]] = 1.0
    columns[skipped > 0] = 0.0
    run = gradients(
        *columns.T, steps=200, scalars={"loss": STUCK.mean() + 0 * skipped, "skipped": skipped}
    )
    assert not said("vanishing-gradient", run)


def test_one_layer_that_fades_late_is_named_alone() -> None:
    late = np.where(np.arange(100) < 70, 1.0, 1e-12)
    finding = only("vanishing-gradient", gradients(1.0, late, 1.0, steps=100))
    assert finding.layers == ("mid",)
    assert finding.first_step == 70
    assert "1.0e-12 of the 0.25 in" in finding.message


def test_a_layer_that_starves_from_the_middle_on_is_named_with_that_step() -> None:
    late = np.where(np.arange(40) < 20, 1.0, 1e-7)
    finding = only("vanishing-gradient", gradients(1.0, late, 1.0, steps=40))
    assert (finding.layers, finding.first_step) == (("mid",), 20)
    near = np.where(np.arange(40) < 20, 1.0, 2e-4)
    assert quiet("vanishing-gradient", gradients(1.0, near, 1.0, steps=40))
    brief = np.where(np.arange(40) < 32, 1.0, 1e-7)
    assert quiet("vanishing-gradient", gradients(1.0, brief, 1.0, steps=40))


def test_gradients_handed_in_flat_are_weights() -> None:
    arrays = {"a": [np.full(9, 1e-9)] * 20, "b": [np.ones(9)] * 20}
    assert only("vanishing-gradient", Run.from_arrays(arrays)).layers == ("a",)


def test_a_gradient_at_the_end_of_the_range_is_as_faint_as_any() -> None:
    """Its RMS is 0 in 64 bits, though its norm is not."""
    tiny = np.full((20, 4, 4), 0.0)
    tiny[:, 0, 0] = 5e-324
    run = Run.from_arrays({"a": tiny, "b": np.ones((20, 4, 4))})
    assert only("vanishing-gradient", run).layers == ("a",)
    assert only("vanishing-gradient", Run.from_arrays({"a": tiny})).severity is Severity.CRITICAL


def test_networks_with_losses_of_their_own_are_not_compared() -> None:
    levels = {"d.0": 1e-6, "d.1": 2e-6, "g.0": 1.0, "g.1": 1e-5}
    subjects = [
        Subject(Kind.PARAMETER, f"{n}.weight", n, (4, 4), "float32", 16, int(n[0] == "g"))
        for n in levels
    ]
    flat = np.ones(50)
    info = {"optimizers": [{"groups": [{"group": 0}]}, {"groups": [{"group": 1}]}]}
    series = {"grad_norm": np.tile(list(levels.values()), (50, 1))}

    def layers(**losses: np.ndarray) -> tuple[str, ...]:
        run = make_run(series, subjects=subjects, scalars=losses, info=info)
        (found,) = said("vanishing-gradient", run)
        assert "in g.0" in found.message
        return found.layers

    assert layers(d_loss=flat, g_loss=flat) == ("g.1",)
    assert set(layers(loss=flat)) == {"d.0", "d.1", "g.1"}
