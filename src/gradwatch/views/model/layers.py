"""The tables of layers and tensors that the rows of a map refer to, and which layer is worst."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.diagnosis import Diagnosis
from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run, block_of
from gradwatch.stats import Kind
from gradwatch.stats.medians import medians
from gradwatch.views.model.heat import Columns
from gradwatch.views.model.titles import GRAD_RMS, shown


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer: its place in forward order, its tensors, and the one that stands for it."""

    name: str
    module: str
    tensors: tuple[int, ...]
    main: int | None
    """The tensor with most elements, trained ones first: the layer's row shows it."""
    block: str


def layer_rows(run: Run) -> tuple[LayerRow, ...]:
    """In forward order."""
    tensors: dict[str, list[int]] = {}
    modules: dict[str, str] = {}
    for index, subject in enumerate(run.parameters):
        tensors.setdefault(subject.layer, []).append(index)
        modules.setdefault(subject.layer, subject.module)
    for subject in run.by_kind[Kind.LAYER]:
        modules[subject.name] = subject.module or modules.get(subject.name, "")
    for node in run.graph.nodes:
        modules[node.layer] = modules.get(node.layer) or node.kind
    return tuple(
        LayerRow(
            name,
            modules.get(name, ""),
            tuple(tensors.get(name, ())),
            _main(run, tensors.get(name)),
            block_of(name),
        )
        for name in run.layers
    )


def _main(run: Run, tensors: Sequence[int] | None) -> int | None:
    if not tensors:
        return None
    return max(tensors, key=lambda i: (not run.parameters[i].frozen, run.parameters[i].count, -i))


def layer_table(layers: Sequence[LayerRow], scores: Sequence[float]) -> list[dict[str, Any]]:
    """The section `layers`; its key `badness` is the layer's sort score."""
    return [
        {
            "name": layer.name,
            "module": layer.module,
            "block": layer.block,
            "tensors": list(layer.tensors),
            "main": layer.main,
            "badness": round(score, 3),
        }
        for layer, score in zip(layers, scores, strict=True)
    ]


def tensor_table(run: Run, layers: Sequence[LayerRow]) -> list[dict[str, Any]]:
    """The section `tensors`, in the order of the run's parameters."""
    position = {layer.name: index for index, layer in enumerate(layers)}
    return [
        {
            "name": subject.name,
            "layer": position[subject.layer],
            "shape": list(subject.shape),
            "count": subject.count,
            "dtype": subject.dtype,
            "frozen": subject.frozen,
        }
        for subject in run.parameters
    ]


def sort_scores(
    run: Run, layers: Sequence[LayerRow], diagnosis: Diagnosis | None, columns: Columns
) -> list[float]:
    """How bad each layer is, for "worst first".

    100 × severity of its worst finding (origins before the rest), + 50 for non-finite gradients,
    + decades between the layer's median gradient RMS and the median layer's.
    """
    scores = _measured_scores(run, layers, columns)
    position = {layer.name: index for index, layer in enumerate(layers)}
    for finding in diagnosis.findings if diagnosis else ():
        for name, points in _points(finding):
            if name in position:
                scores[position[name]] = max(scores[position[name]], points)
    return [float(score) for score in scores]


def worst_first(scores: Sequence[float]) -> list[int]:
    """Indices of layers by their score; equals stay in forward order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


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


def _measured_scores(run: Run, layers: Sequence[LayerRow], columns: Columns) -> NDArray[np.float64]:
    scores = np.zeros(len(layers))
    what = shown(GRAD_RMS)
    if what.stat not in run.recorded or not len(columns):
        return scores
    try:
        values = columns.values(what)
    except GradwatchError:  # too large to be loaded whole: the findings alone decide
        return scores
    nonfinite = np.logical_or.reduce(columns.nonfinite(what.kind, what.stat), axis=0)
    typical = np.log10(medians(np.where(values > 0, values, np.nan)))
    middle = float(medians(typical[[row.main for row in layers if row.main is not None]]))
    for index, layer in enumerate(layers):
        if layer.main is not None and np.isfinite(typical[layer.main]):
            scores[index] = abs(typical[layer.main] - middle)
        if any(nonfinite[tensor] for tensor in layer.tensors):
            scores[index] += 50
    return scores
