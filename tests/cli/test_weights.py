"""The two commands: what they print, what they write, how they end."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.checkpoints.files import floats, safetensors_bytes

from gradwatch.analysis.drift import analyze_drift
from gradwatch.cli.main import gradwatch, main

RNG = np.random.default_rng(9)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global RNG
    RNG = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.05).astype(np.float32)


@pytest.fixture
def healthy(tmp_path):
    return str(floats(tmp_path / "h.safetensors", fc__weight=normal(40, 30), fc__bias=normal(40)))


@pytest.fixture
def sick(tmp_path):
    x = normal(40, 30)
    x[3, 4] = np.nan
    return str(floats(tmp_path / "s.safetensors", fc__weight=x))


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code)


def test_healthy_ends_with_0(healthy, capsys) -> None:
    assert ended("weights", healthy) == 0
    out = capsys.readouterr().out
    assert "Healthy: no finding" in out
    assert "fc.weight  40×30" in out


def test_sick_ends_with_1_unless_asked_for_more(sick, capsys) -> None:
    assert ended("weights", sick) == 1
    assert "critical nonfinite-weights" in capsys.readouterr().out
    assert ended("weights", sick, "--fail-on", "critical") == 1


def test_what_cannot_be_read_ends_with_3(tmp_path, capsys) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(safetensors_bytes({"a": [1]}))
    assert ended("weights", str(path)) == 3
    assert ended("weights", str(tmp_path / "absent")) == 3
    assert ended("drift", str(path), str(path)) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("gradwatch: ") == 3


def test_json_has_every_tensor(sick, capsys) -> None:
    assert ended("weights", sick, "--json", "--spectrum") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == 1
    (tensor,) = data["tensors"]
    wanted = {
        "name",
        "shape",
        "dtype",
        "mean",
        "std_dev",
        "min",
        "max",
        "zero_fraction",
        "spectrum",
    }
    assert wanted <= set(tensor)
    assert tensor["first_nonfinite"] == [3, 4]
    assert data["findings"][0]["check"] == "nonfinite-weights"
    assert data["analysis"]["layer_analyses"]["fc.weight"]["statistics"]["nan_count"] == 1


def test_several_checkpoints_become_steps(healthy, sick, capsys) -> None:
    assert ended("weights", healthy, sick, "--json") == 1
    assert json.loads(capsys.readouterr().out)["steps"] == [0, 1]


def test_the_page_is_written_and_not_overwritten(sick, tmp_path, capsys) -> None:
    page = tmp_path / "r.html"
    assert ended("weights", sick, "-o", str(page)) == 1
    assert "<html" in page.read_text("utf-8")
    assert "nonfinite-weights" in page.read_text("utf-8")
    assert ended("weights", sick, "-o", str(page)) == 2
    assert ended("weights", sick, "-o", str(page), "--force") == 1
    assert "Wrote" in capsys.readouterr().err


def test_names_cannot_command_the_terminal(tmp_path, capsys) -> None:
    name = "a\x1b[31m\u202eweight"
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(header, b"\0" * 8))
    assert ended("weights", str(path)) == 0
    assert ended("drift", str(path), str(path)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_drift_says_what_stood_still(healthy, tmp_path, capsys) -> None:
    assert ended("drift", healthy, healthy) == 1
    assert "none of 2 tensors moved" in capsys.readouterr().out
    other = floats(tmp_path / "o.safetensors", fc__weight=normal(40, 30), fc__bias=normal(40))
    assert ended("drift", healthy, str(other), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 2


def test_the_program_runs_on_workers_as_its_own_process(healthy) -> None:
    command = [sys.executable, "-m", "gradwatch", "weights", healthy, "--workers", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(json.loads(done.stdout)["tensors"]) == 2


def test_the_bar_shows_bytes_when_a_person_is_watching(monkeypatch, capsys) -> None:
    from gradwatch.cli.progress import bytes_bar

    with bytes_bar() as progress:
        progress(5, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bytes_bar() as progress:
        progress(5_000_000, 10_000_000)
    assert "10.0 MB" in capsys.readouterr().err


def test_the_table_fits_eighty_columns(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = {f"blocks__{i}__attention__projection__weight": normal(1024, 64) for i in range(3)}
    path = str(floats(tmp_path / "m.safetensors", **names))
    for options in ([], ["--spectrum"]):
        assert ended("weights", path, *options) == 0
        lines = capsys.readouterr().out.splitlines()
        table = [line for line in lines if "1024×64" in line]
        assert len(table) == 3
        assert all(len(line) <= 80 and "f32" in line for line in table)


def test_drift_says_how_far_the_weights_moved(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    before = {f"l{i}.weight": random.normal(0, 0.05, (16, 16)) for i in range(4)}
    after = {name: 1.01 * array for name, array in before.items()}
    after["l1.weight"] *= 1.5
    for name, tensors in (("before", before), ("after", after)):
        np.savez(tmp_path / f"{name}.npz", **tensors)
    paths = [str(tmp_path / "before.npz"), str(tmp_path / "after.npz")]
    done = CliRunner().invoke(gradwatch, ["drift", *paths])
    assert "52 % at most (High); furthest: l1.weight." in done.output
    told = json.loads(CliRunner().invoke(gradwatch, ["drift", *paths, "--json"]).stdout)
    arrays = analyze_drift(before, after)
    assert told["analysis"]["affected_layers"] == list(arrays.affected_layers)
    assert told["analysis"]["mean_drift"] == pytest.approx(arrays.mean_drift)
