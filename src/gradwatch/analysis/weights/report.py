"""From records, histograms and outliers to the fields of the result."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.weights.grid import Grid
from gradwatch.analysis.weights.results import (
    LayerOutliers,
    OutlierDetection,
    WeightOutlier,
    WeightStatistics,
)
from gradwatch.analysis.weights.scan import Far
from gradwatch.analysis.weights.tensors import CHUNK, Tensor, floating
from gradwatch.analysis.weights.words import OutlierSeverity
from gradwatch.result import missing

NONE_FINITE = "no element is finite"


def statistics(record: np.void, grid: Grid | None, why_no_grid: str) -> WeightStatistics:
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
    value: float = float(record[name]) if finite else missing(NONE_FINITE)
    return value


def _shape(record: np.void, name: str, finite: int, least: int) -> float:
    if finite < least:
        few: float = missing(f"{finite} finite elements; at least {least} are needed")
        return few
    flat = float(record["std"]) <= 8 * np.finfo(np.float64).eps * float(record["abs_max"])
    return 0.0 if flat or np.isnan(record[name]) else float(record[name])


def detection(tensors: Sequence[Tensor], far: dict[str, Far], listed: int) -> OutlierDetection:
    """The furthest outliers of all tensors, and how many there are in each."""
    named = [
        (abs(z), index, int(at), z)
        for index, tensor in enumerate(tensors)
        if (found := far.get(tensor.name))
        for at, z in zip(found.indices, found.distances.tolist(), strict=True)
    ]
    furthest = sorted(named, key=lambda item: (-item[0], item[1], item[2]))[:listed]
    return OutlierDetection(
        total=sum(found.total for found in far.values()),
        listed=len(furthest),
        outliers=tuple(
            _outlier(tensors[index], index, at, z, far[tensors[index].name].limit)
            for _, index, at, z in sorted(furthest, key=lambda item: item[1:3])
        ),
        layers={
            name: LayerOutliers(found.total, found.expected, found.limit)
            for name, found in far.items()
        },
    )


def _outlier(tensor: Tensor, index: int, at: int, z: float, limit: float) -> WeightOutlier:
    assert tensor.values is not None
    # Beyond 3 sigma is Medium and beyond 5 is High in the original: the same proportion here.
    high = abs(z) > limit * 5 / 3
    shape = tensor.shape if int(np.prod(tensor.shape)) == len(tensor.values) else (-1,)
    position = np.unravel_index(at, shape) if shape != (-1,) else (at,)
    return WeightOutlier(
        name=tensor.name,
        layer_index=index,
        weight_index=at,
        position=tuple(int(i) for i in position),
        value=float(tensor.values[at]),
        z_score=z,
        severity=OutlierSeverity.HIGH if high else OutlierSeverity.MEDIUM,
    )


def first_nonfinite(values: NDArray[Any]) -> int:
    """Flat index; the caller knows that there is one."""
    for begin in range(0, len(values), CHUNK):
        bad = ~np.isfinite(floating(values[begin : begin + CHUNK]))
        if bad.any():
            return begin + int(np.argmax(bad))
    raise ValueError("all elements are finite")
