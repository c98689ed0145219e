"""`gradwatch analyze` on a real run folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gradwatch.cli.main import gradwatch
from gradwatch.errors import GradwatchError
from gradwatch.run import Subject
from gradwatch.stats import Family, Kind, row_dtype
from gradwatch.store import Writer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers; the gradient of the first fades at step 20."""
    path = tmp_path_factory.mktemp("runs") / "made"
    writer = Writer.create(path, name="made")
    ids = writer.declare(
        [
            Subject(Kind.PARAMETER, "a[red].weight", "a[red]", (4, 4), "float32", 16, 0),
            Subject(Kind.PARAMETER, "b.weight", "b", (4, 4), "float32", 16, 0),
        ]
    )
    for step in range(40):
        for family in (Family.GRAD, Family.WEIGHT):
            rows = np.zeros(2, row_dtype(family))
            faded = family is Family.GRAD and step >= 20
            rows[f"{family}_norm"] = (1e-7 if faded else 1.0, 1.0)
            rows[f"{family}_count"] = 16
            if family is Family.WEIGHT:
                rows["weight_row_spread"], rows["weight_hash"] = 1.0, step
            writer.put(family, step, ids, rows, np.zeros(2, np.uint8))
    writer.close(30.0)
    return str(path)


def test_the_tables_name_the_layer_and_the_step(run: str) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", run], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    first = done.output.partition(":")[0]
    assert first == "Look first at a[red] (vanishing-gradient, warning, from step 20)"
    assert "Regions: vanishing in a[red] from step 20." in done.output
    assert max(map(len, done.output.splitlines())) <= 80


def test_json_has_the_same_and_brings_back_what_was_asked_for(run: str) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", run, "--flow", "--json"])
    data = json.loads(done.stdout)
    assert set(data) == {"format", "flow"}
    (region,) = data["flow"]["vanishing_regions"]
    assert region["affected_layers"] == ["a[red]"]
    assert region["extent"]["start_step"] == 20


def test_the_original_rules_only_speak_json(run: str) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", run, "--gradients", "--rules", "original"])
    assert done.exit_code == 2
    flags = ["--gradients", "--rules", "original", "--json"]
    done = CliRunner().invoke(gradwatch, ["analyze", run, *flags])
    details = json.loads(done.stdout)["gradients"]["layer_details"]
    assert details["b"]["gradient_statistics"]["mean"] == 1.0


def test_options_reach_the_analyses_and_bad_ones_get_one_sentence(run: str) -> None:
    flags = ["--gradients", "--depth", "basic", "--json"]
    data = json.loads(CliRunner().invoke(gradwatch, ["analyze", run, *flags]).stdout)
    assert data["gradients"]["gradient_hierarchy"] is None
    flags = ["--flow", "--no-paths", "--no-regions", "--no-temporal", "--colours", "monochrome"]
    data = json.loads(CliRunner().invoke(gradwatch, ["analyze", run, *flags, "--json"]).stdout)
    assert data["flow"]["critical_paths"] == data["flow"]["temporal_flows"] == []
    assert data["flow"]["visualization_config"]["color_scheme"] == "Monochrome"
    for option, value in (("--window", "1"), ("--colours", "mauve"), ("--flow-threshold", "2")):
        done = CliRunner().invoke(gradwatch, ["analyze", run, option, value])
        assert isinstance(done.exception, GradwatchError), option
        assert value in str(done.exception)


def test_layers_above_a_norm_on_the_last_step(run: str) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", run, "--explosion", "0.5"])
    assert "1 above the limit (b)" in done.output
    data = json.loads(
        CliRunner().invoke(gradwatch, ["analyze", run, "--explosion", "0.5", "--json"]).stdout
    )
    assert list(data["explosion"]["exploding_layers"]) == ["b"]
    assert data["animation"]["frames_retained"] == 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Arrays by name, the first axis is the step: what a program without torch may have."""
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "gradients.npz",
        **{
            "a.weight": 1e-9 * random.normal(size=(30, 4, 4)),
            "b.weight": random.normal(size=(30, 4, 4)),
            "steps": np.arange(0, 300, 10),
        },
    )
    np.savez(tmp_path / "weights.npz", **{"b.weight": random.normal(size=(30, 4, 4))})
    return tmp_path


def test_a_folder_of_arrays_is_analysed_like_a_run(folder: Path) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", str(folder)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Look first at a.weight (vanishing-gradient")
    assert "from step 0" in done.output.splitlines()[0]
    data = json.loads(CliRunner().invoke(gradwatch, ["analyze", str(folder), "--json"]).stdout)
    flow = data["flow"]["temporal_flows"][0]
    assert flow["step"] == 290
    assert list(data["weights"]["layer_analyses"]) == ["b.weight"]


@pytest.mark.parametrize(
    ("left_out", "shown"),
    [("weights", {"gradients", "flow", "animation"}), ("gradients", {"weights"})],
)
def test_either_kind_of_arrays_is_enough(folder: Path, left_out: str, shown: set[str]) -> None:
    (folder / f"{left_out}.npz").unlink()
    done = CliRunner().invoke(gradwatch, ["analyze", str(folder)])
    assert done.exit_code == 0, done.output
    assert {word for word in ("Gradients", "Flow", "Weights") if f"\n{word}" in done.output} == {
        word.capitalize() for word in shown - {"animation"}
    }
    data = json.loads(CliRunner().invoke(gradwatch, ["analyze", str(folder), "--json"]).stdout)
    assert data.keys() == {"format", *shown}


@pytest.mark.parametrize("depth", ["basic", "standard", "comprehensive", "expert"])
def test_every_depth_has_tables(folder: Path, depth: str) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", str(folder), "--depth", depth])
    assert done.exit_code == 0, done.exception
    assert "a.weight" in done.output


def test_a_folder_of_broken_arrays_is_one_sentence(folder: Path) -> None:
    (folder / "gradients.npz").write_bytes(b"PK\x03\x04 nothing")
    done = CliRunner().invoke(gradwatch, ["analyze", str(folder)])
    assert isinstance(done.exception, GradwatchError)
