"""`analyze_gradients`: every layer, the network, its groups, and what to look at first."""

from enum import StrEnum
from typing import Any

from gradwatch.analysis import Rules
from gradwatch.analysis.gradients import advice, groups, priorities, relations, steadiness, training
from gradwatch.analysis.gradients import layer as of_layer
from gradwatch.analysis.gradients.layer import LayerDetail, LayerHealth
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.diagnosis.verdict import Verdicts, verdicts
from gradwatch.errors import Exit, GradwatchError
from gradwatch.finding import Severity
from gradwatch.original import EnhancedGradientAnalyzer
from gradwatch.result import Result, missing
from gradwatch.run import Run, as_run, choice, number, whole_number


class AnalysisDepth(StrEnum):
    """How much is computed; each depth adds to the one before it."""

    BASIC = "basic"
    STANDARD = "standard"
    COMPREHENSIVE = "comprehensive"
    EXPERT = "expert"

    def reaches(self, other: "AnalysisDepth") -> bool:
        """Whether this depth computes what the other does."""
        return list(AnalysisDepth).index(self) >= list(AnalysisDepth).index(other)

    @property
    def left_out(self) -> Any:
        """Stands for what this depth does not compute."""
        return missing(f"depth={self.value} does not compute it")


class NetworkLevelAnalysis(Result):
    """What holds for all layers together; None what the depth does not compute."""

    overall_gradient_health: LayerHealth
    gradient_distribution: groups.GradientDistribution | None
    layer_interactions: tuple[relations.LayerInteraction, ...] | None
    convergence_indicators: training.ConvergenceIndicators | None
    training_dynamics: training.TrainingDynamics | None
    stability_assessment: steadiness.StabilityAssessment | None
    optimization_suggestions: tuple[advice.LayerOptimizationSuggestion, ...] | None
    """What to try against findings that name no layer."""


class GradientAnalysis(Result):
    """The result of `analyze_gradients`."""

    layer_details: dict[str, LayerDetail]
    network_level_analysis: NetworkLevelAnalysis
    gradient_hierarchy: groups.GradientHierarchy | None
    optimization_priorities: tuple[priorities.OptimizationPriority, ...]
    non_finite_since: int | None
    """The step at which the run went NaN or Inf: everything here is about the steps before it."""


def analyze_gradients(
    data: Any,
    *,
    window: int = 100,
    stability_threshold: float = 0.8,
    depth: AnalysisDepth | str = AnalysisDepth.STANDARD,
    rules: Rules | str = Rules.GRADWATCH,
) -> Any:
    """What the gradients of a run say: a `GradientAnalysis`.

    `data` is a run, or norms or arrays by name, as `Run.from_norms` and `Run.from_arrays` take
    them. `window` is the number of recorded steps that count as "now"; below `stability_threshold`
    a fall of stability is reported sooner. `rules="original"` gives the original program's own
    answer.

    | depth           | computes                                                                  |
    | --------------- | ------------------------------------------------------------------------- |
    | `basic`         | statistics and health of each layer, priorities with their actions        |
    | `standard`      | and how norms move, comparisons, suggestions, the network, groups          |
    | `comprehensive` | and the interval of each mean norm, statistics of each third of the run   |
    | `expert`        | and the statistics of every tensor                                        |

    What a depth does not compute is None, and `missing` says so.
    """
    original = choice(Rules, rules, "rules") is Rules.ORIGINAL
    chosen = choice(AnalysisDepth, depth, "depth")
    # The original takes a window of two; a trend of ours needs three samples.
    window = whole_number(window, "window", least=2 if original else of_layer.FEWEST)
    threshold = _share(stability_threshold, "stability_threshold")
    run = as_run(data)
    if original:
        analyzer = EnhancedGradientAnalyzer(chosen, window, threshold)
        return analyzer.generate_enhanced_analysis(histories(run))
    return _analysis(run, window, threshold, chosen)


def _share(value: Any, option: str) -> float:
    share = number(value, option, least=0)
    if share <= 1:
        return share
    raise GradwatchError(f"Expected a {option} between 0 and 1, got {value!r}.", Exit.USAGE)


def _analysis(run: Run, window: int, threshold: float, depth: AnalysisDepth) -> GradientAnalysis:
    series = LayerSeries.of(run)
    recent = series.last(window)  # what counts as "now"
    said = verdicts(run)
    because = list(advice.reasons(said.diagnosis, len(series.names)))
    layers = _layers(run, series, recent, said, because, depth)
    health = [layer.health_metrics for layer in layers]
    network = [depth.left_out] * 6
    hierarchy = depth.left_out
    if depth.reaches(AnalysisDepth.STANDARD):
        hierarchy = groups.hierarchy(run, series, recent)
        network = [
            groups.distribution(series, recent),
            relations.interactions(recent),
            training.convergence(
                run, series, [item.convergence_indicator for item in health], window
            ),
            training.dynamics(run, window),
            steadiness.stability(run, series, recent, threshold),
            advice.suggestions(item for item in because if not item.finding.layers),
        ]
    named = next((finding.layers for finding in said.diagnosis.findings), ())
    overall = _overall_health(said, [item.overall_health for item in health])
    return GradientAnalysis(
        {layer.layer_name: layer for layer in layers},
        NetworkLevelAnalysis(overall, *network),
        hierarchy,
        priorities.priorities(series, recent, layers, because, named[0] if named else None),
        series.non_finite_since,
    )


def _layers(
    run: Run,
    series: LayerSeries,
    recent: LayerSeries,
    said: Verdicts,
    because: list[advice.Reason],
    depth: AnalysisDepth,
) -> list[LayerDetail]:
    """Each layer in forward order."""
    left_out: list[Any] = [depth.left_out] * len(series.names)
    characteristics = stabilities = falls = suggested = compared = left_out
    intervals = stages = tensors = left_out
    traits: list[Any] = [()] * len(series.names)
    if depth.reaches(AnalysisDepth.STANDARD):
        characteristics, stabilities, falls, traits = of_layer.flows(recent)
        compared = of_layer.compared(series, recent)
        suggested = of_layer.layer_suggestions(recent, priorities.reasons_by_layer(because))
    if depth.reaches(AnalysisDepth.COMPREHENSIVE):
        intervals, stages = of_layer.mean_intervals(recent), of_layer.stages(series)
    if depth.reaches(AnalysisDepth.EXPERT):
        by_layer = of_layer.tensor_statistics(run)
        tensors = [by_layer[name] for name in series.names]
    numbers = list(of_layer.statistics(series.norms, series.non_finite_samples.tolist()))
    told = zip(series.names, numbers, stabilities, falls, traits, strict=True)
    health = of_layer.health(run, said, told)
    rest = suggested, compared, intervals, stages, tensors
    return list(map(LayerDetail, series.names, numbers, characteristics, health, *rest))


def _overall_health(said: Verdicts, levels: list[LayerHealth]) -> LayerHealth:
    """As grave as the gravest finding of the diagnosis, whichever layers it names."""
    worst = max((item.severity for item in said.diagnosis.everything()), default=Severity.INFO)
    silent = LayerHealth.HEALTHY if LayerHealth.HEALTHY in levels else LayerHealth.UNKNOWN
    return of_layer.HEALTH.get(worst, silent)
