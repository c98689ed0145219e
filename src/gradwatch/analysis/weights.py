"""`analyze_weights`: statistics, health and outliers of weights, per tensor and pooled.

One pass over the elements measures all tensors, a second one fills histograms and finds outliers. A
run keeps only the moments: what needs the elements is then missing. Health is what the checks say
(`gradwatch.diagnosis.verdict`); the original's penalties only place a score within its band.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, overload

import numpy as np

from gradwatch.analysis import Rules
from gradwatch.analysis.elements import (
    ELEMENTS,
    Given,
    MeasuredTensor,
    Outliers,
    ValueGrid,
    cell_exponent,
    common_exponent,
    from_run,
    named,
    scan,
    singles,
    spread,
    with_elements,
)
from gradwatch.checkpoints.measure import OVERFLOW
from gradwatch.checkpoints.scanning import scan_arrays
from gradwatch.checks.context import context
from gradwatch.checks.tensors import weights_only
from gradwatch.diagnosis import Trouble, Verdict, Verdicts, verdicts
from gradwatch.finding import Severity
from gradwatch.kernel import MOMENTS, merge
from gradwatch.original import weights as original
from gradwatch.result import AdviceCode, Result, missing
from gradwatch.run import Run, choice, whole_number

EMPTY = "the tensor is empty"
NOTHING = "there is no element to judge"
NONE_FINITE = "no element is finite"


class WeightIssue(AdviceCode):
    """What is odd about a weight tensor's distribution, and what to do where that does harm.

    All but `NON_FINITE` describe a shape; whether it does harm is for the checks to say.
    """

    NON_FINITE = (
        "non-finite",
        "Go back to the last checkpoint without them, and look for the step that made them.",
    )
    ZERO_WEIGHTS = (
        "zero-weights",
        "If the tensor was not pruned on purpose: lower the learning rate or weight decay, or "
        "change the activation.",
    )
    SKEWED = "skewed", "Normalise the weights, or initialise them differently."
    HEAVY_TAILS = (
        "heavy-tails",
        "Watch these layers' gradients: a few weights carry the layer.",
    )
    EXTREME_VALUES = "extreme-values", "Add weight decay, or clip the weights."


class OutlierSeverity(StrEnum):
    """How far beyond the limit an outlier lies."""

    MEDIUM = "Medium"
    HIGH = "High"


class DistributionHealthStatus(StrEnum):
    """A score in a word; which words can be had depends on the findings."""

    EXCELLENT = "Excellent"
    GOOD = "Good"
    FAIR = "Fair"
    POOR = "Poor"
    CRITICAL = "Critical"
    UNKNOWN = "Unknown"


class WeightStatistics(Result):
    """Of the finite elements; what is NaN or infinite is counted beside them."""

    count: int
    mean: float | None
    std_dev: float | None
    skewness: float | None
    """None below three elements; 0 where all are equal."""
    kurtosis: float | None
    """None below four elements; 0 where all are equal."""
    entropy: float | None
    """Bits of a histogram (Freedman–Diaconis, 1 … 256 bins) with the Miller–Madow term."""
    normalized_entropy: float | None
    """Entropy over its largest possible value, log₂ of the number of bins."""
    min: float | None
    max: float | None
    zero_fraction: float | None
    norm: float | None
    """Euclidean norm."""
    nan_count: int
    inf_count: int


class LayerWeightAnalysis(Result):
    """Everything the analysis has about one tensor."""

    name: str
    layer_index: int
    shape: tuple[int, ...]
    dtype: str
    statistics: WeightStatistics
    zero_rows: int | None
    """Output units whose weights are all zero; None for tensors of one dimension."""
    first_nonfinite: int | None
    """Flat index of the first NaN or Inf."""
    health_score: float | None
    """75 to 100 where no finding names the tensor, 40 to 74 with a warning, below if critical."""
    status: DistributionHealthStatus
    findings: tuple[str, ...]
    """The checks whose findings name the tensor, gravest first."""
    issues: tuple[WeightIssue, ...]
    recommendations: tuple[str, ...]


class DistributionHealth(Result):
    """The weights of the whole network, scored within the band of the gravest finding of all."""

    score: float | None
    status: DistributionHealthStatus


class WeightOutlier(Result):
    """An element far from the rest of its tensor."""

    name: str
    layer_index: int
    weight_index: int
    position: tuple[int, ...]
    value: float
    z_score: float
    """Signed robust distance: from the median, in units of 1.4826 · MAD."""
    severity: OutlierSeverity


class LayerOutliers(Result):
    """Outliers of one tensor, counted."""

    total: int
    expected: float
    """How many a Gaussian of this size would show beyond the limit."""
    limit: float
    """Robust distance from which an element counts: 3.5, more in large tensors."""


class OutlierDetection(Result):
    """Outliers of all tensors."""

    total: int
    listed: int
    outliers: tuple[WeightOutlier, ...]
    """The furthest of all, in the order of layers and elements."""
    layers: dict[str, LayerOutliers]


class WeightDistributionAnalysis(Result):
    """The result of `analyze_weights`."""

    layer_analyses: dict[str, LayerWeightAnalysis]
    overall_statistics: WeightStatistics
    distribution_health: DistributionHealth
    outlier_detection: OutlierDetection | None
    non_finite_since: int | None = None
    """Step from which the training is not finite: the weights are the last ones before it."""


@overload
def analyze_weights(
    tensors_or_run: Given | Run,
    *,
    rules: Literal["gradwatch"] = ...,
    listed: int = ...,
    elements: Given | None = ...,
) -> WeightDistributionAnalysis: ...
@overload
def analyze_weights(
    tensors_or_run: Given | Run, *, rules: Rules | str, listed: int = ...
) -> Result: ...
def analyze_weights(
    tensors_or_run: Given | Run,
    *,
    rules: Rules | str = Rules.GRADWATCH,
    listed: int = 100,
    elements: Given | None = None,
) -> Result:
    """Judge weights handed in by name (or as a list), or the last ones recorded in a run.

    `listed` outliers are named, the furthest; their total is always given. From a run, what needs
    the elements themselves (entropy, outliers) is None and says so, unless the last weights are at
    hand as `elements`. `rules="original"` is the original program's own analysis, in 32 bits (from
    a run: of the recorded statistics).
    """
    if choice(Rules, rules, "rules") is Rules.ORIGINAL:
        return _original(tensors_or_run)
    listed = whole_number(listed, "listed", least=0)
    if isinstance(tensors_or_run, Run):
        run = tensors_or_run
    else:
        elements = tensors_or_run
        run = scan_arrays(named(elements))
    tensors, detection = from_run(run) if len(run.names) else [], missing(ELEMENTS)
    grids: Mapping[str, ValueGrid] = {}
    pooled, why_no_grid = None, ELEMENTS
    if elements is not None:
        tensors = with_elements(tensors, elements)
        grids, pooled, outliers = _second_pass(tensors, listed)
        detection, why_no_grid = _detection(tensors, outliers, listed), NOTHING
    overall, judged = _overall(tensors, pooled, why_no_grid), verdicts(run)
    return WeightDistributionAnalysis(
        layer_analyses={
            tensor.name: _layer(index, tensor, grids.get(tensor.name), why_no_grid, judged)
            for index, tensor in enumerate(tensors)
        },
        overall_statistics=overall,
        distribution_health=_distribution_health(overall, judged),
        outlier_detection=detection,
        non_finite_since=None if weights_only(run) else context(run).non_finite_since,
    )


def distribution_health(run: Run) -> DistributionHealth:
    """What `analyze_weights` says of the network as a whole, without its layers."""
    tensors = from_run(run) if len(run.names) else []
    return _distribution_health(_overall(tensors, None, ELEMENTS), verdicts(run))


def _overall(
    tensors: Sequence[MeasuredTensor], pooled: ValueGrid | None, why_no_grid: str
) -> WeightStatistics:
    if not any(tensor.count for tensor in tensors):
        return _nothing(NOTHING)
    record = merge(np.array([tensor.record for tensor in tensors], MOMENTS))
    return statistics(record, pooled, why_no_grid)


def _second_pass(
    tensors: Sequence[MeasuredTensor], kept: int
) -> tuple[dict[str, ValueGrid], ValueGrid | None, dict[str, Outliers]]:
    """Each tensor's histogram, that of all together, each tensor's outliers."""
    finite = [tensor for tensor in tensors if tensor.finite]
    spreads = [spread(tensor) for tensor in finite]
    common = common_exponent(finite, spreads)
    grids, comparable, outliers = {}, [], {}
    for tensor, its_spread in zip(finite, spreads, strict=True):
        low, high = float(tensor.record["min"]), float(tensor.record["max"])
        exponent = cell_exponent(its_spread.quartiles, tensor.finite, low, high)
        fine, outliers[tensor.name] = scan(tensor, its_spread, min(exponent, common), kept)
        grids[tensor.name] = fine.coarser(exponent)
        comparable.append(fine.coarser(common))
    return grids, ValueGrid.pooled(comparable) if comparable else None, outliers


def _layer(
    index: int, tensor: MeasuredTensor, grid: ValueGrid | None, why_no_grid: str, judged: Verdicts
) -> LayerWeightAnalysis:
    numbers = statistics(tensor.record, grid, why_no_grid) if tensor.count else _nothing(EMPTY)
    said = judged.by_tensor.get(tensor.name, ())
    issues = _issues(numbers, _LAYER_LIMITS, said)
    score = _score(issues, _LAYER_PENALTIES, judged.tensor_severity(tensor.name))
    first = None
    if tensor.nonfinite:
        held = tensor.values
        first = missing(ELEMENTS) if held is None else int(np.isfinite(held).argmin())
    return LayerWeightAnalysis(
        name=tensor.name,
        layer_index=index,
        shape=tensor.shape,
        dtype=tensor.dtype,
        statistics=numbers,
        zero_rows=(
            int(tensor.record["zero_rows"])
            if len(tensor.shape) >= 2
            else missing("only tensors of two or more dimensions have rows")
        ),
        first_nonfinite=first,
        health_score=score if tensor.count else missing(EMPTY),
        status=_status(score if tensor.count else None),
        findings=tuple(dict.fromkeys(verdict.check for verdict in said)),
        issues=issues,
        recommendations=tuple(issue.advice for issue in issues),
    )


# -- statistics ------------------------------------------------------------------------------------


def statistics(record: np.void, grid: ValueGrid | None, why_no_grid: str) -> WeightStatistics:
    """Of one record (a tensor, or several merged); moments of equal elements are 0."""
    infinite = int(record["pos_inf"]) + int(record["neg_inf"])
    count, nan = int(record["count"]), int(record["nan"])
    finite = count - nan - infinite
    return WeightStatistics(
        count=count,
        mean=_measured(record, "mean", finite),
        std_dev=_measured(record, "std", finite),
        skewness=_shape(record, "skewness", finite, 3),
        kurtosis=_shape(record, "kurtosis", finite, 4),
        entropy=grid.entropy if grid else missing(why_no_grid),
        normalized_entropy=grid.normalized_entropy if grid else missing(why_no_grid),
        min=_measured(record, "min", finite),
        max=_measured(record, "max", finite),
        zero_fraction=int(record["zeros"]) / count if count else missing(NONE_FINITE),
        norm=_measured(record, "norm", finite),
        nan_count=nan,
        inf_count=infinite,
    )


def _measured(record: np.void, name: str, finite: int) -> float:
    value = float(record[name])
    if not finite or not np.isfinite(value):
        value = missing(NONE_FINITE if not finite else OVERFLOW)
    return value


def _shape(record: np.void, name: str, finite: int, least: int) -> float:
    if finite < least:
        few: float = missing(f"{finite} finite elements; at least {least} are needed")
        return few
    flat = float(record["std"]) <= 8 * np.finfo(np.float64).eps * float(record["abs_max"])
    return 0.0 if flat else _measured(record, name, finite)


def _nothing(why: str) -> WeightStatistics:
    gone = missing(why)
    return WeightStatistics(0, gone, gone, gone, gone, gone, gone, gone, gone, gone, gone, 0, 0)


# -- health ----------------------------------------------------------------------------------------

_LAYER_LIMITS = {"zeros": 0.5, "skewness": 2.0, "kurtosis": 10.0, "extreme": 10.0}
_OVERALL_LIMITS = {"zeros": 0.3, "skewness": 1.0, "kurtosis": 5.0, "extreme": 5.0}
_LAYER_PENALTIES = {
    WeightIssue.NON_FINITE: 100.0,
    WeightIssue.ZERO_WEIGHTS: 30.0,
    WeightIssue.SKEWED: 15.0,
    WeightIssue.HEAVY_TAILS: 15.0,
    WeightIssue.EXTREME_VALUES: 20.0,
}
_OVERALL_PENALTIES = {**_LAYER_PENALTIES, WeightIssue.ZERO_WEIGHTS: 25.0}
_STATUS = (
    (90.0, DistributionHealthStatus.EXCELLENT),
    (75.0, DistributionHealthStatus.GOOD),
    (60.0, DistributionHealthStatus.FAIR),
    (40.0, DistributionHealthStatus.POOR),
)


_BANDS = {
    None: (75.0, 100.0),
    Severity.INFO: (75.0, 100.0),
    Severity.WARNING: (40.0, 74.0),
    Severity.CRITICAL: (0.0, 39.0),
}


def _issues(
    numbers: WeightStatistics, limits: Mapping[str, float], said: Sequence[Verdict]
) -> tuple[WeightIssue, ...]:
    """What lies above the limits; an undefined statistic raises no issue."""
    largest = max(abs(numbers.min or 0.0), abs(numbers.max or 0.0))
    present = {
        WeightIssue.NON_FINITE: any(verdict.trouble is Trouble.NON_FINITE for verdict in said),
        WeightIssue.ZERO_WEIGHTS: (numbers.zero_fraction or 0.0) > limits["zeros"],
        WeightIssue.SKEWED: abs(numbers.skewness or 0.0) > limits["skewness"],
        WeightIssue.HEAVY_TAILS: (numbers.kurtosis or 0.0) > limits["kurtosis"],
        WeightIssue.EXTREME_VALUES: largest > limits["extreme"],
    }
    return tuple(issue for issue in present if present[issue])


def _score(
    issues: tuple[WeightIssue, ...],
    penalties: Mapping[WeightIssue, float],
    severity: Severity | None,
) -> float:
    """100 less the penalties (all of it for anything non-finite), held in the verdict's band."""
    low, high = _BANDS[severity]
    return min(max(100.0 - sum(penalties[issue] for issue in issues), low), high)


def _status(score: float | None) -> DistributionHealthStatus:
    if score is None:
        return DistributionHealthStatus.UNKNOWN
    return next((s for least, s in _STATUS if score >= least), DistributionHealthStatus.CRITICAL)


def _distribution_health(overall: WeightStatistics, judged: Verdicts) -> DistributionHealth:
    """Of the whole network, by the pooled statistics and tighter limits."""
    if not overall.count:
        return DistributionHealth(missing(NOTHING), DistributionHealthStatus.UNKNOWN)
    said = [verdict for verdicts_ in judged.by_tensor.values() for verdict in verdicts_]
    issues = _issues(overall, _OVERALL_LIMITS, said)
    score = _score(issues, _OVERALL_PENALTIES, judged.diagnosis.worst)
    return DistributionHealth(score, _status(score))


# -- outliers --------------------------------------------------------------------------------------


def _detection(
    tensors: Sequence[MeasuredTensor], outliers: Mapping[str, Outliers], listed: int
) -> OutlierDetection:
    """The furthest outliers of all tensors, and how many there are in each."""
    candidates = [
        (abs(z), index, int(at), z)
        for index, tensor in enumerate(tensors)
        if tensor.name in outliers
        for at, z in zip(
            outliers[tensor.name].indices, outliers[tensor.name].distances.tolist(), strict=True
        )
    ]
    furthest = sorted(candidates, key=lambda item: (-item[0], item[1], item[2]))[:listed]
    return OutlierDetection(
        total=sum(layer.total for layer in outliers.values()),
        listed=len(furthest),
        outliers=tuple(
            _outlier(tensors[index], index, at, z, outliers[tensors[index].name].limit)
            for _, index, at, z in sorted(furthest, key=lambda item: item[1:3])
        ),
        layers={
            name: LayerOutliers(layer.total, layer.expected, layer.limit)
            for name, layer in outliers.items()
        },
    )


def _outlier(tensor: MeasuredTensor, index: int, at: int, z: float, limit: float) -> WeightOutlier:
    assert tensor.values is not None
    # Beyond 3 sigma is Medium and beyond 5 is High in the original: the same proportion here.
    high = abs(z) > limit * 5 / 3
    # A complex tensor has two elements for each of its places: those are told flat.
    flat = int(np.prod(tensor.shape)) != len(tensor.values)
    position = (at,) if flat else np.unravel_index(at, tensor.shape)
    return WeightOutlier(
        name=tensor.name,
        layer_index=index,
        weight_index=at,
        position=tuple(int(i) for i in position),
        value=float(tensor.values[at]),
        z_score=z,
        severity=OutlierSeverity.HIGH if high else OutlierSeverity.MEDIUM,
    )


# -- the original's rules --------------------------------------------------------------------------


def _original(tensors_or_run: Given | Run) -> Result:
    if not isinstance(tensors_or_run, Run):
        return original.analyze_weight_distribution(list(singles(tensors_or_run).values()))
    return original.judge([_recorded(t) for t in from_run(tensors_or_run)], missing(ELEMENTS))


def _recorded(tensor: MeasuredTensor) -> original.WeightStatistics:
    """The original's fields from a record; its NaN where there are non-finite elements."""
    numbers = statistics(tensor.record, None, ELEMENTS)
    spoilt = np.nan if tensor.nonfinite else 0.0  # extremes skip NaN there, sums do not
    std = (numbers.std_dev or 0.0) + spoilt
    return original.WeightStatistics(
        mean=(numbers.mean or 0.0) + spoilt,
        std_dev=std,
        skewness=(numbers.skewness or 0.0) + spoilt,
        kurtosis=(numbers.kurtosis or 0.0) + spoilt,
        entropy=original.entropy(std),
        min=numbers.min or 0.0,
        max=numbers.max or 0.0,
        zero_fraction=numbers.zero_fraction or 0.0,
    )
