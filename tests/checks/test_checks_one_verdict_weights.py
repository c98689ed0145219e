"""One verdict on weights: a hundred made checkpoints, and no door contradicts another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.checkpoints.files import bfloat16, write_safetensors

from gradwatch.analysis.weights import WeightDistributionAnalysis, analyze_weights
from gradwatch.checkpoints import scan
from gradwatch.checks import WEIGHT_CHECKS
from gradwatch.cli.main import gradwatch
from gradwatch.diagnosis import Diagnosis, diagnose, verdicts
from gradwatch.finding import Severity
from gradwatch.run import Run

Array = np.ndarray[Any, Any]
MADE = 100
WORDS = {
    None: {"Excellent", "Good"},
    Severity.INFO: {"Excellent", "Good"},
    Severity.WARNING: {"Fair", "Poor"},
    Severity.CRITICAL: {"Critical"},
}
SCALES = {Severity.CRITICAL: 2000.0, Severity.WARNING: 300.0, Severity.INFO: 15.0}


# -- what is made ----------------------------------------------------------------------------------


def _nan(x: Array, random: np.random.Generator) -> None:
    x.reshape(-1)[random.integers(x.size)] = random.choice([np.nan, np.inf, -np.inf])


def _constant(x: Array, random: np.random.Generator) -> None:
    x[...] = random.choice([0.0, 1.0, -0.25])


def _zeroed(x: Array, random: np.random.Generator) -> None:
    lines = x if random.random() < 0.5 else x.T
    lines[random.random(len(lines)) < random.choice([0.02, 0.3, 0.8])] = 0.0


def _identical(x: Array, random: np.random.Generator) -> None:
    x[:] = x[0]


def _copied(x: Array, random: np.random.Generator) -> None:
    x[len(x) // 2 :] = x[: len(x) - len(x) // 2]


def _outlying(x: Array, random: np.random.Generator) -> None:
    lines = x if random.random() < 0.5 else x.T
    lines[random.integers(len(lines))] *= random.choice(list(SCALES.values()))


def _huge(x: Array, random: np.random.Generator) -> None:
    x.reshape(-1)[0] = 1e6


def _heavy(x: Array, random: np.random.Generator) -> None:
    """Odd in shape (zeros, tails, extremes), but no fault."""
    x[random.random(x.shape) < 0.6] = 0.0
    x.reshape(-1)[:3] = 12.0


FAULTS: tuple[Callable[[Array, np.random.Generator], None], ...] = (
    _nan, _constant, _zeroed, _identical, _copied, _outlying, _huge, _heavy,
)  # fmt: skip


def made_weights(seed: int) -> dict[str, Array]:
    """Every fifth is healthy; in the others each matrix may have a fault."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for layer in range(random.integers(1, 5)):
        rows, columns = random.integers(32, 80, 2)
        matrix = random.normal(0, 0.05, (rows, columns))
        if seed % 5 and random.random() < 0.6:
            random.choice(FAULTS)(matrix, random)  # type: ignore[arg-type]
        tensors[f"blocks.{layer}.fc.weight"] = matrix
        tensors[f"blocks.{layer}.fc.bias"] = np.zeros(rows)
        off = seed % 5 and random.random() < 0.2
        tensors[f"blocks.{layer}.norm.weight"] = np.full(rows, 1e-5 if off else 1.0)
    tensors["wte.weight"] = random.normal(0, 0.05, (64, 24))
    if seed % 5 and random.random() < 0.3:
        tensors["wte.weight"][random.random(64) < 0.4] = 0.0
    tensors["attn.mask"] = np.where(np.tri(9) > 0, 0.0, -np.inf)
    if seed % 7 == 0:
        tensors["head.weight"] = tensors["wte.weight"].copy()
    return tensors


def saved(folder: Path, tensors: dict[str, Array], seed: int) -> tuple[Path, dict[str, Array]]:
    """In one of four forms; the arrays are those that the file holds."""
    form = seed % 4
    if form == 0:
        np.savez(folder / "m.npz", **tensors)  # type: ignore[arg-type]
        return folder / "m.npz", tensors
    narrow = {name: array.astype(np.float32) for name, array in tensors.items()}
    if form == 1:
        np.savez_compressed(folder / "m.npz", **narrow)  # type: ignore[arg-type]
        return folder / "m.npz", narrow
    path = folder / "m.safetensors"
    if form == 2:
        return write_safetensors(path, {n: ("float32", a) for n, a in narrow.items()}), narrow
    bits = {name: bfloat16(array) for name, array in narrow.items()}
    held = {n: (b.astype(np.uint32) << 16).view(np.float32) for n, b in bits.items()}
    return write_safetensors(path, {n: ("bfloat16", b) for n, b in bits.items()}), held


# -- what is asked ---------------------------------------------------------------------------------


def severities(diagnosis: Diagnosis) -> dict[str, Severity]:
    """Tensor → the gravest finding that names it."""
    worst: dict[str, Severity] = {}
    for item in diagnosis.everything():
        for name in item.tensors:
            worst[name] = max(item.severity, worst.get(name, item.severity))
    return worst


def contradictions(analysis: WeightDistributionAnalysis, diagnosis: Diagnosis) -> list[str]:
    """Tensors (and "all") whose word is not one of those that the findings allow."""
    said = severities(diagnosis)
    wrong = [
        name
        for name, layer in analysis.layer_analyses.items()
        if layer.status.value not in WORDS[said.get(name)]
    ]
    if analysis.distribution_health.status.value not in WORDS[diagnosis.worst]:
        wrong.append("all")
    return wrong


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[Diagnosis]:
    """The diagnosis of every made checkpoint, after all other doors agreed with it."""
    found = []
    for seed in range(MADE):
        path, arrays = saved(tmp_path_factory.mktemp("made"), made_weights(seed), seed)
        run = scan(path)
        diagnosis = diagnose(run)
        found.append(diagnosis)
        assert contradictions(analyze_weights(run), diagnosis) == [], seed
        assert contradictions(analyze_weights(arrays), diagnosis) == [], seed
        assert verdicts(run).by_tensor.keys() == severities(diagnosis).keys(), seed
        shown = json.loads(CliRunner().invoke(gradwatch, ["weights", str(path), "--json"]).stdout)
        written = json.loads(json.dumps(diagnosis.to_dict()))
        for key in ("verdict", "findings", "skipped"):
            assert shown[key] == written[key], (seed, key)
        for name, layer in shown["analysis"]["layer_analyses"].items():
            assert layer["status"] in WORDS[severities(diagnosis).get(name)], (seed, name)
        assert shown["analysis"]["distribution_health"]["status"] in WORDS[diagnosis.worst], seed
        # statistics alone see less, but nothing else
        partly = diagnose(Run.from_arrays(weights={name: [a] for name, a in arrays.items()}))
        for name, severity in severities(partly).items():
            assert severity <= severities(diagnosis)[name], (seed, name)
    return found


def test_no_door_contradicts_another(asked: list[Diagnosis]) -> None:
    assert len(asked) == MADE


def test_the_healthy_are_healthy(asked: list[Diagnosis]) -> None:
    assert all(diagnosis.verdict in ("healthy", "notes") for diagnosis in asked[::5])


def test_every_check_that_can_fire_did(asked: list[Diagnosis]) -> None:
    fired = {item.check for diagnosis in asked for item in diagnosis.findings}
    names = {check.NAME for check in WEIGHT_CHECKS}
    assert names - fired == {"low-rank", "oversized-tensors", "foreign-objects"}
    assert {item.severity for d in asked for item in d.findings} == set(Severity)


def test_a_liar_is_caught(tmp_path: Path) -> None:
    sick = {"a.weight": np.zeros((8, 4)), "b.weight": np.eye(8)}
    sound = {"a.weight": np.eye(8), "b.weight": np.eye(8)}
    path, _ = saved(tmp_path, sick, 0)
    assert contradictions(analyze_weights(sound), diagnose(scan(path))) == ["a.weight", "all"]
