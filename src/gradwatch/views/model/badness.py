"""How bad each layer is, for "worst first": what was found there, then its gradient."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run
from gradwatch.views.model.columns import Columns
from gradwatch.views.model.health import Diagnosed
from gradwatch.views.model.rows import Layer
from gradwatch.views.model.titles import GRAD_RMS, shown


def badness(
    run: Run, layers: tuple[Layer, ...], diagnosis: Diagnosed | None, columns: Columns
) -> list[float]:
    """100 × severity of the worst finding (origins before the rest), + 50 for non-finite gradients,
    + decades between the layer's median gradient RMS and the median layer's."""
    score = _measured(run, layers, columns)
    position = {layer.name: index for index, layer in enumerate(layers)}
    for finding in diagnosis.findings if diagnosis else ():
        for name, points in _points(finding):
            if name in position:
                score[position[name]] = max(score[position[name]], points)
    return [float(value) for value in score]


def _points(finding: Finding) -> list[tuple[str, float]]:
    """The origin counts most; layers named after it a little less."""
    base = 100.0 * finding.severity
    named = [(name, base - min(rank, 50)) for rank, name in enumerate(finding.layers)]
    after = [
        (name, 50.0 * int(min(item.severity, Severity.WARNING)))
        for item in finding.consequences
        for name in item.layers
    ]
    return named + after


def _measured(run: Run, layers: tuple[Layer, ...], columns: Columns) -> NDArray[np.float64]:
    score = np.zeros(len(layers))
    what = shown(GRAD_RMS)
    if what.stat not in run.recorded or not len(columns):
        return score
    try:
        values = columns.values(what)
    except GradwatchError:
        return score
    bad = np.logical_or.reduce(columns.nonfinite(what.kind, what.stat), axis=0)
    typical = np.full(values.shape[1], np.nan)
    for column in range(values.shape[1]):
        finite = values[:, column][np.isfinite(values[:, column]) & (values[:, column] > 0)]
        if len(finite):
            typical[column] = np.log10(np.median(finite))
    mains = [layer.main for layer in layers if layer.main is not None]
    known = typical[mains][np.isfinite(typical[mains])] if mains else np.empty(0)
    middle = float(np.median(known)) if len(known) else 0.0
    for index, layer in enumerate(layers):
        if layer.main is not None and np.isfinite(typical[layer.main]):
            score[index] = abs(typical[layer.main] - middle)
        if any(bad[tensor] for tensor in layer.tensors):
            score[index] += 50
    return score


def worst_first(model: dict[str, Any]) -> list[int]:
    """Indices of the model's layers, worst first; equals stay in forward order."""
    return sorted(range(len(model["layers"])), key=lambda i: -model["layers"][i]["badness"])
