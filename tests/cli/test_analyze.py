"""`gradwatch analyze` on a real run folder."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from gradwatch.cli.main import gradwatch
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
            rows[f"{family}_norm"] = (1e-7 if step >= 20 else 1.0, 1.0)
            rows[f"{family}_count"] = 16
            writer.put(family, step, ids, rows, np.zeros(2, np.uint8))
    writer.close(30.0)
    return str(path)


def test_the_tables_name_the_layer_and_the_step(run: str) -> None:
    done = CliRunner().invoke(gradwatch, ["analyze", run], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "Vanishing (Critical): a[red] … a[red], 16 parameters, since step 20" in done.output
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
