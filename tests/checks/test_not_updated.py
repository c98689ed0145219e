"""What `not-updated` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import NAMES, Severity, make_run, only, quiet, said, skipped, table, weight

from gradwatch.run import Subject
from gradwatch.stats import Kind


def hashes(*columns: object, subjects: list[Subject], grad: object = 1.0, **options: object):  # type: ignore[no-untyped-def]
    values = {
        "weight_hash": table(columns, 20),
        "grad_norm": table([grad] * len(columns), 20),
    }
    return make_run(values, subjects=subjects, **options)  # type: ignore[arg-type]


def test_not_updated_because_no_optimizer_has_it() -> None:
    run = hashes(7, np.arange(20), subjects=[weight("a", group=None), weight("b")])
    finding = only("not-updated", run)
    assert finding.layers == ("a",)
    assert "no optimizer" in finding.message


def test_not_updated_although_it_has_gradients() -> None:
    finding = only("not-updated", hashes(7, np.arange(20), subjects=[weight("a"), weight("b")]))
    assert finding.severity is Severity.CRITICAL
    assert "bit-identical" in finding.message


def test_not_updated_because_the_rate_is_zero() -> None:
    groups = [Subject(Kind.GROUP, "0"), Subject(Kind.GROUP, "1")]
    run = make_run(
        {
            "weight_hash": table([7, np.arange(20)], 20),
            "grad_norm": table([1.0, 1.0], 20),
            "lr": table([1e-3, 0.0], 20),
        },
        subjects=[weight("a", group=1), weight("b"), *groups],
    )
    assert "learning rate is 0" in only("not-updated", run).message


def test_frozen_but_handed_over_is_a_fault_and_frozen_alone_is_not() -> None:
    handed = hashes(7, np.arange(20), subjects=[weight("a", frozen=True), weight("b")])
    assert "handed" in only("not-updated", handed).message
    rest = hashes(7, np.arange(20), subjects=[weight("a", frozen=True, group=None), weight("b")])
    assert not said("not-updated", rest)


def test_not_updated_for_want_of_a_gradient_is_only_mentioned() -> None:
    run = hashes(7, 9, subjects=[weight("a"), weight("b")], grad=0.0)
    assert quiet("not-updated", run)


def test_everything_that_moves_is_updated() -> None:
    assert not said("not-updated", hashes(np.arange(20), subjects=[weight("a")]))


def test_without_weights_or_updates_not_updated_says_so() -> None:
    assert skipped("not-updated", make_run({"grad_norm": table([1.0], 20)}, names=NAMES[:1]))
