"""The view model: what is shown of a run, downsampled, with titles and units, for every view."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from gradwatch.analysis.weights import WeightDistributionAnalysis
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.run import Run
from gradwatch.views.model import curves, health
from gradwatch.views.model.analyses import Analyses, analyses
from gradwatch.views.model.flow import flow, flow_problems
from gradwatch.views.model.heat import Columns, choice, heat
from gradwatch.views.model.layers import (
    layer_rows,
    layer_table,
    sort_scores,
    tensor_table,
    worst_first,
)
from gradwatch.views.model.ranks import ranks

FORMAT = 1
COLUMNS = 240
JsonObject = dict[str, Any]
NOT_BUILT: Any = object()
"""In place of a section that was not wanted; None would say that the run has nothing to show."""
_KEYS = {"weight_histograms": "ridges", "not_recorded": "unseen"}
"""Keys in the JSON that differ from the name of the field: the page's script knows these."""
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True, kw_only=True)
class ViewModel:
    """Everything a page can show. Each field is a section, in the order in which it is sent.

    All of it is plain JSON: no NaN, no array, no object. A model may be built with some sections
    only; the others are not in its JSON and must not be read.
    """

    format: int = NOT_BUILT
    run: JsonObject = NOT_BUILT
    window: list[int] = NOT_BUILT
    """First and last step that are shown."""
    health: JsonObject = NOT_BUILT
    findings: list[JsonObject] = NOT_BUILT
    timeline: list[str] = NOT_BUILT
    skipped: list[dict[str, str]] = NOT_BUILT
    """Checks that could not look, and why."""
    scalars: list[JsonObject] = NOT_BUILT
    nonfinite_loss: dict[str, int] | None = NOT_BUILT
    learning_rates: list[JsonObject] = NOT_BUILT
    ranks: JsonObject | None = NOT_BUILT
    """None for a run of one process."""
    layers: list[JsonObject] = NOT_BUILT
    tensors: list[JsonObject] = NOT_BUILT
    heat: JsonObject = NOT_BUILT
    """The maps of layers over steps."""
    updates: JsonObject | None = NOT_BUILT
    """Quantiles of update / weight over the tensors."""
    flow: JsonObject = NOT_BUILT
    weight_histograms: list[JsonObject] = NOT_BUILT
    analyses: Analyses | None = NOT_BUILT
    """None for a stretch of a run and before the diagnosis: analyses are of a whole run."""
    events: list[JsonObject] = NOT_BUILT
    cost: list[str] = NOT_BUILT
    not_recorded: list[str] = NOT_BUILT
    signals: list[JsonObject] = NOT_BUILT

    def to_dict(self) -> JsonObject:
        """The built sections by their key in the JSON."""
        built = {key: getattr(self, name) for name, key in _FIELDS.items()}
        return {key: value for key, value in built.items() if value is not NOT_BUILT}


_FIELDS = {item.name: _KEYS.get(item.name, item.name) for item in fields(ViewModel)}
SECTIONS = tuple(_FIELDS.values())
"""The keys of the sections in the JSON, in order."""
OF_DIAGNOSIS = frozenset(
    {"health", "findings", "timeline", "skipped", "ranks", "layers", "ridges", "analyses"}
)
"""Sections that need the diagnosis."""


def build(
    run: Run,
    diagnosis: Diagnosis | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
    columns: int = COLUMNS,
    stats: Sequence[str] | None = None,
    with_paths: bool = True,
    sections: Collection[str] | None = None,
    weights: WeightDistributionAnalysis | None = None,
) -> ViewModel:
    """What is shown of the steps `first` … `last`.

    `stats` names the maps; without it the usual choice is made within a budget of cells.
    The analyses are of the whole run; `with_paths=False` leaves them away. Only `sections` (their
    keys in the JSON) are computed. `weights` is the analysis of elements, which no run holds.
    """
    about = health.about(run)
    begin = about["first_step"] if first is None else first
    end = about["last_step"] if last is None else last
    maps, width = choice(run, stats, columns)
    grid = Columns.of(run, first, last, width)
    whole = with_paths and first is None and last is None
    layers = layer_rows(run)

    @cache  # two sections need them
    def scores() -> list[float]:
        return sort_scores(run, layers, diagnosis, grid)

    def worst_tensors() -> list[int]:
        mains = (layers[index].main for index in worst_first(scores()))
        return [main for main in mains if main is not None]

    makers: dict[str, Callable[[], Any]] = {
        "format": lambda: FORMAT,
        "run": lambda: about,
        "window": lambda: [begin, end],
        "health": lambda: health.health(run, diagnosis),
        "findings": lambda: health.findings(run, diagnosis, begin, end),
        "timeline": lambda: health.timeline(diagnosis),
        "skipped": lambda: health.skipped(diagnosis),
        "scalars": lambda: curves.scalars(run, begin, end),
        "nonfinite_loss": lambda: health.nonfinite_loss(run),
        "learning_rates": lambda: curves.learning_rates(run, begin, end),
        "ranks": lambda: ranks(run, diagnosis, begin, end),
        "layers": lambda: layer_table(layers, scores()),
        "tensors": lambda: tensor_table(run, layers),
        "heat": lambda: heat(grid, maps),
        "updates": lambda: curves.update_spread(grid),
        "flow": lambda: flow(run.graph, layers) | (flow_problems(run) if whole else {}),
        "weight_histograms": lambda: curves.weight_histograms(run, worst_tensors()),
        "analyses": lambda: analyses(run, diagnosis, weights) if whole and diagnosis else None,
        "events": lambda: health.events(run),
        "cost": lambda: health.cost(run),
        "not_recorded": lambda: health.not_recorded(run),
        "signals": lambda: health.signals(run),
    }
    wanted = [name for name, key in _FIELDS.items() if sections is None or key in sections]
    return ViewModel(**{name: makers[name]() for name in wanted})


def diagnosed(run: Run) -> Diagnosis:
    """The diagnosis of a run, by every check."""
    return diagnose(run)


def to_json(model: ViewModel | Mapping[str, Any]) -> str:
    """Compact ASCII, in which no character ends a script element: fit for a file and for HTML.

    Not `jsonio`, whose escapes the page does not know: a model holds no NaN, null stands for it.
    """
    tree = model.to_dict() if isinstance(model, ViewModel) else model
    text = json.dumps(tree, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.translate(_HTML)
