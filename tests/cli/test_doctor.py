"""`gradwatch doctor`: what it says, what it keeps to itself, how it ends."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from gradwatch.cli import doctor
from gradwatch.cli.main import gradwatch
from gradwatch.version import __version__

ROOT = Path(doctor.__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GRADWATCH_")]:
        monkeypatch.delenv(name)


def asked() -> dict[str, Any]:
    done = CliRunner().invoke(gradwatch, ["doctor", "--json"], standalone_mode=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["works"] is (done.return_value == 0)
    return answer


def in_a_child(first: str = "", **environment: str) -> tuple[int, str]:
    """Exit code and output of a new process, in which `first` has been run."""
    code = f"{first}\nfrom gradwatch.cli.main import main\nmain(['doctor'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_versions_kernel_and_folder_are_named() -> None:
    Path("runs").mkdir()
    done = CliRunner().invoke(gradwatch, ["doctor"], standalone_mode=False)
    assert done.return_value == 0
    for words in (
        f"gradwatch      {__version__}, imported from ",
        f"torch          {torch.__version__}; CPU",
        f"pyarrow        {metadata.version('pyarrow')}",
        "runs folder    runs: there, ",
        "device engine  ",
        "kernel         ",
    ):
        assert words in done.stdout
    answer = asked()
    assert answer["format"] == doctor.FORMAT
    assert {"Python", "system", "numpy", "click", "uvicorn", "pictures"} <= set(answer["facts"])


def test_it_keeps_names_and_secrets_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setattr(Path, "home", lambda: ROOT)
    assert asked()["facts"]["gradwatch"].endswith(f" {Path('~/gradwatch')}")
    monkeypatch.setattr(Path, "home", lambda: Path("/nowhere"))
    monkeypatch.setattr("getpass.getuser", lambda: ROOT.name)
    text = json.dumps(asked(), ensure_ascii=False)
    assert str(Path("…/gradwatch")) in text
    assert f"/{ROOT.name}/" not in text
    assert "hunter2" not in text


def test_without_torch_reading_still_works() -> None:
    code, out = in_a_child("import sys; sys.modules['torch'] = None")
    assert code == 0
    assert "torch          not installed: recording needs it" in out
    assert "device engine  none without torch" in out


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str) -> ModuleType:
        if name == "torch":
            raise OSError("libtorch.so: cannot open shared object file")
        return sys.modules[name]

    monkeypatch.setattr(doctor, "import_module", failing)
    answer = asked()
    assert not answer["works"]
    assert "OSError: libtorch.so" in " ".join(answer["not_well"])


def test_what_is_too_old_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyarrow": "10.0.1", "torch": "2.1.0", "rich": None}
    true = metadata.version

    def version(name: str) -> str:
        if versions.get(name, "") is None:
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or true(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(torch, "__version__", "2.1.0")
    answer = asked()
    assert not answer["works"]
    said = " ".join(answer["not_well"])
    assert "pyarrow 10.0.1 is too old: gradwatch needs 17" in said
    assert "torch 2.1.0 is too old: gradwatch needs 2.4" in said
    assert "rich is not installed" in said
    assert "numpy" not in said


def test_a_slow_kernel_is_said_and_a_wrong_one_breaks() -> None:
    code, out = in_a_child(GRADWATCH_KERNEL="none")
    assert code == 0
    assert "plain numpy: GRADWATCH_KERNEL asks for it" in out
    assert "- The kernel is plain numpy, which is slow" in out
    code, out = in_a_child(GRADWATCH_KERNEL="nonsense")
    assert code == 1
    assert "- The kernel cannot be used: GRADWATCH_KERNEL is 'nonsense'" in out


def test_a_wrong_engine_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWATCH_DEVICE_ENGINE", "nonsense")
    answer = asked()
    assert not answer["works"]
    assert "asks for 'nonsense', which cannot be had" in " ".join(answer["not_well"])


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "runs: not there yet" in asked()["facts"]["runs folder"]
    full = shutil.disk_usage(".")._replace(free=5_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda place: full)
        answer = asked()
        assert answer["works"]
        assert "nearly full: 0.0 GB free" in " ".join(answer["not_well"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *asked: False)
        assert "cannot be written to" in " ".join(asked()["not_well"])
    Path("runs").write_text("")
    answer = asked()
    assert not answer["works"]
    assert "Runs cannot be kept in runs: that is a file" in " ".join(answer["not_well"])


def test_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, well in (("quiet", True), ("off", True), ("silent", False)):
        monkeypatch.setenv("GRADWATCH_MODE", value)
        answer = asked()
        assert answer["works"]
        assert answer["facts"]["GRADWATCH_MODE"] == value
        assert any("GRADWATCH_MODE" in line for line in answer["not_well"]) is not well
    monkeypatch.setenv("GRADWATCH_MODUS", "\x1b[2J")
    answer = asked()
    assert answer["facts"]["GRADWATCH_MODUS"] == "\\x1b[2J"
    assert "GRADWATCH_MODUS is set, but nothing is known by that name." in answer["not_well"]


def test_another_distribution_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"gradwatch": ["gradwatch", "gradwatch-nightly"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: given)
    assert "gradwatch-nightly" in " ".join(asked()["not_well"])
    monkeypatch.setattr(metadata, "packages_distributions", dict)
    monkeypatch.setattr(doctor, "__version__", "9.9.9")
    assert "another copy, 9.9.9, comes first" in " ".join(asked()["not_well"])
