"""What `vanishing-gradient` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import (
    NAMES,
    Severity,
    gradients,
    make_run,
    only,
    quiet,
    said,
    table,
    weight,
)


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
