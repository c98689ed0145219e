"""Every golden case under both rule books, as trees whose lists are keyed like maps."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.golden.reading import numbers
from tests.original.inputs import histories, tensor

from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.explosion import detect_gradient_explosion
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.jsonio import dumps, loads
from gradwatch.original import animation, flow, gradients, weights
from gradwatch.run import Run

IDENTITY = ("layer_index", "layer_name", "name", "target_name", "step")


def keyed(tree: Any) -> Any:
    """Lists of objects become maps, by layer where they name one, else by place."""
    if isinstance(tree, dict):
        return {key: keyed(item) for key, item in tree.items()}
    if isinstance(tree, list) and tree and all(isinstance(item, dict | list) for item in tree):
        same = [field for field in IDENTITY if all(field in item for item in tree)]
        field = next((f for f in same if len({str(i[f]) for i in tree}) == len(tree)), None)
        return {str(item[field]) if field else str(i): keyed(item) for i, item in enumerate(tree)}
    return tree


def leaves(tree: Any) -> dict[tuple[str, ...], Any]:
    """Path → value; an empty map or list is a leaf."""
    found: dict[tuple[str, ...], Any] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, dict) and item:
            waiting += [((*path, str(key)), below) for key, below in item.items()]
        else:
            found[path] = item
    return found


def at(tree: Any, pattern: str) -> dict[tuple[str, ...], Any]:
    """What stands at a pattern: the words its stars stand for → value."""
    found: dict[tuple[str, ...], Any] = {(): tree}
    for part in pattern.split("."):
        step: dict[tuple[str, ...], Any] = {}
        for names, item in found.items():
            if not isinstance(item, dict):
                continue
            if part == "*":
                step |= {(*names, key): below for key, below in item.items()}
            elif part in item:
                step[names] = item[part]
        found = step
    return found


def seen(file: str, output: Any) -> Any:
    """The golden output (or one of ours in that form) as the map's rows name it."""
    output = keyed(numbers(output))
    if file == "weight_distribution":
        return {**output["analysis"], "l2_norms": output["l2_norms"]}
    return output


# -- the original's rules --------------------------------------------------------------------------


def original(file: str, case: dict[str, Any]) -> Any:
    """The same output by our copy of the original's rules."""
    return loads(dumps(ORIGINAL[file](case)))


def _distribution(case: dict[str, Any]) -> Any:
    tensors = [tensor(layer) for layer in numbers(case["input"])["layers"]]
    return {
        "analysis": weights.analyze_weight_distribution(tensors),
        "l2_norms": [weights.compute_l2_norm(values) for values in tensors],
    }


def _explosion(case: dict[str, Any]) -> Any:
    given = numbers(case["input"])
    arrays = [np.array(values, np.float32) for values in given["gradients"]]
    return weights.detect_gradient_explosion(arrays, given["threshold"])


def _animated(case: dict[str, Any], make: Any) -> Any:
    given = numbers(case["input"])
    # By its limits; without them our animator judges as diagnose does.
    limits = {"vanishing_threshold": 1e-7, "exploding_threshold": 1e3}
    limits |= {name: given[name] for name in limits if given[name]}
    animator = make(given["max_frames"], **limits)
    for item in given["steps"]:
        animator.record_step(item["step"], item["gradients"])
    return animator


def _animation(case: dict[str, Any]) -> Any:
    animator = _animated(case, animation.GradientFlowAnimator)
    with TemporaryDirectory() as folder:
        return {
            "frames": animator.frames(),
            "csv": animator.export_csv(Path(folder, "a.csv")).read_text(encoding="utf-8"),
            "ascii": animator.to_ascii_animation(),
            "export_json_text": animator.export_json(Path(folder, "a.json")).read_text("utf-8"),
            "summary": animator.summary_report(),
        }


def _settings(case: dict[str, Any]) -> dict[str, Any]:
    analyzer = case["input"]["analyzer"]
    return {"window": analyzer["window"], "stability_threshold": analyzer["threshold"]}


ORIGINAL: dict[str, Callable[[dict[str, Any]], Any]] = {
    "weight_distribution": _distribution,
    "gradient_explosion": _explosion,
    "animator": _animation,
    "enhanced_analysis": lambda case: gradients.EnhancedGradientAnalyzer(
        "Standard", *_settings(case).values()
    ).analyze_gradients(histories(case)),
    "visualization": lambda case: flow.GradientFlowVisualizer().generate_visualization(
        histories(case), case["input"]["current_step"]
    ),
}


# -- our rules -------------------------------------------------------------------------------------


def ours(file: str, case: dict[str, Any]) -> Any:
    """Our result for the same input, as a tree of maps."""
    return keyed(loads(dumps(_OURS[file](case))))


def _run(case: dict[str, Any]) -> Run:
    kept = {h["layer_name"]: max(h["max_history_length"], 1) for h in case["input"]["histories"]}
    given = {h["layer_name"]: numbers(h) for h in case["input"]["histories"]}
    return Run.from_norms(
        {name: h["norms"][-kept[name] :] for name, h in given.items()},
        steps={name: h["steps"][-kept[name] :] for name, h in given.items()},
    )


_OURS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "weight_distribution": lambda case: analyze_weights(
        [tensor(layer) for layer in numbers(case["input"])["layers"]]
    ),
    "gradient_explosion": lambda case: detect_gradient_explosion(
        [np.array(values, np.float32) for values in numbers(case["input"])["gradients"]],
        numbers(case["input"])["threshold"],
    ),
    "animator": lambda case: _animated(case, GradientFlowAnimator).recording(),
    "enhanced_analysis": lambda case: analyze_gradients(_run(case), **_settings(case)),
    "visualization": lambda case: analyze_flow(_run(case), temporal_window=1_000_000),
}
HAS_OURS = frozenset(_OURS)


def is_finite(tree: Any) -> bool:
    """Whether an input holds no NaN or Inf."""
    return all(
        not isinstance(x, float) or math.isfinite(x)
        for value in leaves(keyed(numbers(tree))).values()
        for x in (value if isinstance(value, list) else [value])
    )
