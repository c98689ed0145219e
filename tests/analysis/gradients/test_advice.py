"""Every kind of suggestion and action comes from data that ask for it, and not from those near."""

from collections.abc import Callable, Iterator
from enum import StrEnum

import pytest
from tests.analysis.gradients import made

from gradwatch.analysis.gradients import GradientAnalysis, analyze_gradients
from gradwatch.analysis.gradients.advice import (
    REMEDIES,
    ActionType,
    ImplementationComplexity,
    ImplementationEffort,
    LayerOptimizationSuggestion,
    SuggestionType,
)
from gradwatch.checks import CHECKS
from gradwatch.run import Run


def all_suggestions(analysis: GradientAnalysis) -> Iterator[LayerOptimizationSuggestion]:
    for detail in analysis.layer_details.values():
        yield from detail.optimization_suggestions
    yield from analysis.network_level_analysis.optimization_suggestions


def said(run: Run) -> set[str]:
    """Every kind, complexity, type and effort that the analysis of a run holds.

    By `repr`: as texts, a moderate complexity and a moderate effort are equal.
    """
    analysis = analyze_gradients(run)
    words: list[StrEnum] = []
    for item in all_suggestions(analysis):
        words += [item.suggestion_type, item.implementation_complexity]
    for priority in analysis.optimization_priorities:
        for action in priority.recommended_actions:
            words += [action.action_type, action.implementation_effort]
    return set(map(repr, words))


Made = Callable[[], Run]
Kind, Complexity, Effort = SuggestionType, ImplementationComplexity, ImplementationEffort

CASES: list[tuple[StrEnum, Made, Made]] = [
    (Kind.WEIGHT_INITIALIZATION, made.vanishing, made.healthy),
    (Kind.LEARNING_RATE_ADJUSTMENT, made.exploding, made.vanishing),
    (Kind.REGULARIZATION_ADD, made.overfitting, lambda: made.overfitting(rises=False)),
    (Kind.ARCHITECTURAL_MODIFICATION, made.deep, lambda: made.deep(sick=3)),
    (Kind.OPTIMIZATION_ALGORITHM, made.below_eps, lambda: made.below_eps(0.2)),
    (Kind.BATCH_NORMALIZATION, made.vanishing, made.exploding),
    (Kind.DROPOUT_ADJUSTMENT, made.overfitting, lambda: made.overfitting(rises=False)),
    (Kind.GRADIENT_CLIPPING, made.exploding, made.vanishing),
    (Kind.FIND_NON_FINITE, made.non_finite, made.exploding),
    (Kind.CHECK_CONNECTION, made.dead, made.vanishing),
    (Complexity.SIMPLE, made.exploding, made.vanishing),
    (Complexity.MODERATE, made.overfitting, made.exploding),
    (Complexity.COMPLEX, made.deep, lambda: made.deep(sick=3)),
    (Complexity.REQUIRES_RETRAINING, made.vanishing, made.dead),
    (ActionType.PARAMETER_ADJUSTMENT, made.vanishing, made.overfitting),
    (ActionType.ARCHITECTURAL_CHANGE, made.vanishing, made.exploding),
    (ActionType.OPTIMIZATION_TECHNIQUE, made.exploding, made.vanishing),
    (ActionType.REGULARIZATION_METHOD, made.overfitting, made.exploding),
    (ActionType.LEARNING_RATE_SCHEDULING, made.exploding, made.vanishing),
    (Effort.MINIMAL, made.exploding, made.vanishing),
    (Effort.LOW, made.exploding, made.vanishing),
    (Effort.MODERATE, made.vanishing, made.dead),
    (Effort.HIGH, made.vanishing, made.exploding),
    (Effort.EXTENSIVE, made.deep, lambda: made.deep(sick=3)),
]


@pytest.mark.parametrize(
    ("word", "sick", "near"), CASES, ids=[f"{type(word).__name__}.{word}" for word, _, _ in CASES]
)
def test_every_word_comes_from_data_that_ask_for_it(word: StrEnum, sick: Made, near: Made) -> None:
    assert repr(word) in said(sick())
    assert repr(word) not in said(near())


def test_no_word_is_left_out() -> None:
    every = (*SuggestionType, *ImplementationComplexity, *ActionType, *ImplementationEffort)
    assert sorted(repr(word) for word, _, _ in CASES) == sorted(map(repr, every))


def test_a_healthy_run_is_told_nothing() -> None:
    assert said(made.healthy()) == set()


def test_every_remedy_belongs_to_a_check() -> None:
    assert set(REMEDIES) <= {check.NAME for check in CHECKS}


def test_a_suggestion_says_what_was_measured() -> None:
    detail = analyze_gradients(made.vanishing()).layer_details["sick"]
    first = detail.optimization_suggestions[0]
    assert first.reason == "Vanishing"
    assert "here the RMS is 9.9e-07, that of the median layer 0.995" in first.rationale
    assert first.expected_improvement == pytest.approx(6, abs=0.1)
    assert first.side_effects
    assert 0 <= detail.comparative_analysis.optimization_potential <= 1


def test_what_cannot_be_known_in_advance_is_none_with_the_reason() -> None:
    (suggestion,) = analyze_gradients(made.dead()).layer_details["sick"].optimization_suggestions
    assert suggestion.expected_improvement is None
    assert "second training" in suggestion.missing["expected_improvement"]


def test_the_impact_of_an_action_is_the_share_of_the_gradient() -> None:
    run = made.exploding()
    means = {name: float(run.column("grad_norm", name).mean()) for name in run.names}
    share = means["sick"] ** 2 / sum(mean**2 for mean in means.values())
    first = analyze_gradients(run).optimization_priorities[0]
    assert [action.expected_impact for action in first.recommended_actions] == [
        pytest.approx(share, rel=1e-9)
    ] * len(first.recommended_actions)
    of_network = analyze_gradients(made.overfitting()).optimization_priorities[0]
    assert of_network.recommended_actions[0].expected_impact is None


def test_what_follows_from_a_root_waits_for_it() -> None:
    """The loss that does not fall is no reason to raise the rate while a layer explodes."""
    norms = {f"ok{i}": made.noise(i) for i in range(4)} | {
        "sick": [min(10.0 ** (i / 8), 3e3) for i in range(60)]
    }
    run = Run.from_norms(norms, scalars={"loss": [2.3] * 60})
    analysis = analyze_gradients(run)
    network = next(p for p in analysis.optimization_priorities if p.target_name == "network")
    assert network.reasons == ("slow-convergence",)
    assert [action.action_name for action in network.recommended_actions] == [
        "Mend exploding-gradient in sick first: this follows from it."
    ]
    assert analysis.network_level_analysis.optimization_suggestions == ()
