"""`docs/from-trustformers.md`: every field of the original and where gradwatch has it.

`python -m tools.from_trustformers > docs/from-trustformers.md` writes the page from the TOML file
beside this one; the section on what the corrections change runs both rule books on small inputs.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.explosion import detect_gradient_explosion
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.errors import GradwatchError
from gradwatch.run import Run

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
REST = [(item["part"], item["here"]) for item in DATA["rest"]]
MARKS = {
    "M": "right: ours is the same",
    "F": "wrong formula: ours is the right one",
    "P": "a constant or stand-in: ours is a measurement",
}
HEAD = """# Coming from trustformers-debug

<!-- `python -m tools.from_trustformers` makes it; a test keeps it so. -->

The analyses of gradwatch answer what the gradient and weight debugger of trustformers-debug 0.1.1
answers, under the same field names. They take `rules="gradwatch"` (the default, right) or
`rules="original"` (what the original program itself would say, formula by formula, in insertion
order; its modules are those of `gradwatch.original`). Where NaN is among values
that the original has to sort, it panics; an error then says "NaN: the original stops here".

In the tables `*` stands for the name of a layer or a place in a list. What could not be measured is
None, and `result.missing[field]` says why.
"""


def attribute(path: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Row:
    """One field of the original; where `ours`, the path of our field, is None, `note` says why."""

    field: str
    mark: str
    ours: str | None
    note: str

    @classmethod
    def parse(cls, line: str) -> "Row":
        field, mark, ours, note = (part.strip() for part in line.split("|"))
        return cls(field, mark, {"=": field, "-": None}.get(ours, ours), note)


@dataclass(frozen=True)
class System:
    """One result of the original: golden cases, its rules here, our call and our result class."""

    title: str
    original: str
    call: str
    result: str
    rows: tuple[Row, ...]
    golden: str | None = None


@dataclass(frozen=True)
class Levels:
    """One enumeration of the original, our class for it, and why some of its levels are gone."""

    name: str
    declared: tuple[str, ...]
    unreachable: frozenset[str]
    ours: str | None
    gone: Mapping[str, str]

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> "Levels":
        words = item["declared"].split()
        names = tuple(word.rstrip("†") for word in words)
        gone = item.get("gone", {})
        return cls(
            name=item["name"],
            declared=names,
            unreachable=frozenset(word.rstrip("†") for word in words if word.endswith("†")),
            ours=item.get("ours"),
            gone=dict.fromkeys(names, gone) if isinstance(gone, str) else gone,
        )

    @property
    def added(self) -> tuple[str, ...]:
        """Levels the original lacks."""
        ours = attribute(self.ours) if self.ours else ()
        return tuple(level.value for level in ours if level.value not in self.declared)


SYSTEMS = [
    System(**{**item, "rows": tuple(map(Row.parse, item["rows"].strip().splitlines()))})
    for item in DATA["system"]
]
LEVELS = [Levels.parse(item) for item in DATA["levels"]]


# -- both rule books on the same small inputs ------------------------------------------------------


def _layer(norms: Iterable[float], rules: str) -> Any:
    try:
        found = analyze_gradients(Run.from_norms({"a": list(norms)}), rules=rules)
    except GradwatchError:
        return "it stops"
    return found.layer_details["a"].health_metrics.overall_health


def _trend(norms: Iterable[float], rules: str) -> Any:
    found = analyze_gradients(Run.from_norms({"a": list(norms)}), rules=rules)
    return found.network_level_analysis.convergence_indicators.convergence_trend


def _weights(tensors: Iterable[Any], rules: str) -> Any:
    return analyze_weights([np.asarray(t, np.float32) for t in tensors], rules=rules)


def _explosion(norms: list[float], at: int, rules: str) -> Any:
    layers: Any = detect_gradient_explosion([np.array([n]) for n in norms], 10.0, rules=rules)
    layers = layers.exploding_layers
    return layers[str(at)].severity if isinstance(layers, dict) else layers[0].severity


def _animated(gradients: dict[str, list[float]], rules: str) -> Any:
    animator: Any = GradientFlowAnimator(rules=rules)
    for step in range(8):
        animator.record_step(step, gradients)
    summary = animator.summary_report() if rules == "original" else animator.summary()
    return summary.overall_health


NAN = float("nan")
NOISE = 1 + 0.1 * np.random.default_rng(0).normal(size=200)
FALLING = np.linspace(200.0, 1.0, 120) * (1 + 0.1 * np.random.default_rng(0).normal(size=120))
SHORT = 1 + 0.1 * np.random.default_rng(0).normal(size=8)
GAUSSIAN = 0.02 * np.random.default_rng(0).normal(size=5000)
HALVES, TWO_TO_THREE = [[-1.0] * 9, [1.0] * 9], [np.linspace(2, 3, 50)]
DEAD = {"a": [0.0], "b": [0.0]}
CHANGES: list[tuple[str, str, Callable[[str], Any]]] = [
    ("white noise around 1", "health of the layer", lambda r: _layer(NOISE, r)),
    ("norms with NaN", "health of the layer", lambda r: _layer([*SHORT, NAN, 1.0], r)),
    ("zero for 100 steps", "health of the layer", lambda r: _layer([0.0] * 100, r)),
    ("falling from 200 to 1", "convergence trend", lambda r: _trend(FALLING, r)),
    ("rising from 1 to 200", "convergence trend", lambda r: _trend(FALLING[::-1], r)),
    ("a single sample", "health of the layer", lambda r: _layer([1.0], r)),
    (
        "weights −1 … and 1 …",
        "pooled standard deviation",
        lambda r: _weights(HALVES, r).overall_statistics.std_dev,
    ),
    (
        "weights between 2 and 3",
        "pooled minimum",
        lambda r: _weights(TWO_TO_THREE, r).overall_statistics.min,
    ),
    (
        "a weight is NaN",
        "status",
        lambda r: _weights([[NAN, 0.1, 0.2]], r).distribution_health.status,
    ),
    (
        "Gaussian weights, std 0.02",
        "entropy in bits",
        lambda r: _weights([GAUSSIAN], r).overall_statistics.entropy,
    ),
    ("norm 1e6 before 199 of 1", "severity", lambda r: _explosion([1e6] + [1.0] * 199, 0, r)),
    ("norm 1e6 after 199 of 1", "severity", lambda r: _explosion([1.0] * 199 + [1e6], 199, r)),
    ("all layers dead in every frame", "health of the animation", lambda r: _animated(DEAD, r)),
    ("a frame with NaN", "health of the animation", lambda r: _animated({"a": [NAN]}, r)),
]


# -- the page --------------------------------------------------------------------------------------


def page() -> str:
    return "\n".join([HEAD, _marks(), _changes(), *map(_system, SYSTEMS), _levels(), _rest()])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _marks() -> str:
    rows = [row for system in SYSTEMS for row in system.rows]
    counted = Counter(row.mark for row in rows)
    table = _table(
        ["mark", "the original's value is", "fields"],
        ([mark, text, str(counted[mark])] for mark, text in MARKS.items()),
    )
    nothing = sum(row.ours is None for row in rows)
    count = f"Of these {len(rows)} fields, {nothing} have no field of ours; their row says why."
    return f"## Marks\n\n{table}\n{count}\n"


def _changes() -> str:
    rows = (
        [given, asked, *(_text(answer(rules)) for rules in ("original", "gradwatch"))]
        for given, asked, answer in CHANGES
    )
    table = _table(["given", "asked", "original", "gradwatch"], rows)
    return f"## What the corrections change\n\n{table}"


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _system(system: System) -> str:
    rows = []
    for row in system.rows:
        ours = "same" if row.ours == row.field else f"`{row.ours}`" if row.ours else "none"
        rows.append([f"`{row.field}`", row.mark, ours, row.note])
    table = _table(["field of the original", "mark", "ours", "note"], rows)
    calls = f"Ours: `{system.call}`. The original's rules: `{system.original}`."
    return f"## {system.title}\n\n{calls}\n\n{table}"


def _levels() -> str:
    rows = []
    for item in LEVELS:
        there = [f"{level}†" if level in item.unreachable else level for level in item.declared]
        gone = "; ".join(f"{level} ({why})" for level, why in item.gone.items())
        rows.append([item.name, ", ".join(there), gone or "none", ", ".join(item.added) or "none"])
    table = _table(["enumeration", "levels of the original", "gone", "new"], rows)
    return f"## Levels\n\n† is declared by the original and never produced by it.\n\n{table}"


def _rest() -> str:
    return "## The rest\n\n" + _table(["part of the original", "here"], REST)


if __name__ == "__main__":
    sys.stdout.write(page())
