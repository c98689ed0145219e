"""Inside a hostile folder: none of its modules runs, neither in the reading child nor in a worker.

Every stand-in module marks that it ran. Here are the checkpoints, in every form; the other doors
are in tests/test_isolated_doors.py, and what the processes are told in tests/test_isolated.py.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.canaries import (
    CONSOLE,
    FORMS,
    INSTALLED,
    SOURCE,
    canaries,
    checkpoints,
    clean_environment,
    console,
    poison,
    traps,
    weight,
)

from gradwatch.checkpoints.limits import ALONE_BYTES
from gradwatch.cli.main import gradwatch as command
from gradwatch.isolated import IsolatedProcess

LONG = pytest.mark.security
WORKERS = [(), ("--workers", "2")]
NORM = float(np.linalg.norm(weight(30).astype(np.float64)))
LARGE = ALONE_BYTES // 160 + 1
"""The width of a matrix that takes a little more, with 40 rows of float32."""


@pytest.fixture(scope="module")
def safe(tmp_path_factory) -> Path:
    """One small checkpoint of each form."""
    return checkpoints(tmp_path_factory.mktemp("safe") / "checkpoints")


@pytest.fixture
def hostile(tmp_path, safe) -> Path:
    """The checkpoints among stand-ins for the whole standard library, all packages and ours."""
    folder = tmp_path / "hostile"
    shutil.copytree(safe, folder)
    return traps(folder, tmp_path / "marks")


def script(
    folder: Path, *words: str, python: Path | str = sys.executable, **variables: str
) -> float:
    """The norm that the console script finds in this folder."""
    done = console(
        folder, "weights", "--json", *words, python=python, variables=clean_environment(**variables)
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return norm(done.stdout)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Iterator[Path]:
    folder = checkpoints(tmp_path_factory.mktemp("large") / "checkpoints", LARGE)
    yield folder
    shutil.rmtree(folder)


def marked(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "marks").iterdir())


def test_a_process_that_is_not_isolated_is_told_on(tmp_path, hostile) -> None:
    subprocess.run([sys.executable, "-c", "import colorsys"], cwd=hostile, env={}, check=True)
    assert marked(tmp_path) == ["colorsys"]


@pytest.fixture
def surrounded(hostile, monkeypatch) -> None:
    """In that folder, with every variable by which Python could take code from it.

    This process has begun already, and obeys none of them.
    """
    monkeypatch.chdir(hostile)
    for name, value in poison(hostile).items():
        monkeypatch.setenv(name, value)


def weights(*words: str) -> float:
    """The norm that `weights` finds in the current folder, without a process for the caller."""
    done = CliRunner().invoke(command, ["weights", "--json", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return norm(done.stdout)


def norm(printed: str) -> float:
    """The matrix's: the largest."""
    return max(tensor["norm"] for tensor in json.loads(printed)["tensors"])


@pytest.mark.parametrize("name", FORMS)
def test_no_module_of_the_current_folder_or_the_environment_runs(
    tmp_path, surrounded, name
) -> None:
    assert weights(name, "--workers", "1") == pytest.approx(NORM)
    assert marked(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=() if (name, workers) == ("new.pt", WORKERS[1]) else LONG)
        for name in FORMS
        for workers in WORKERS
    ],
)
def test_the_console_script_runs_none_either(tmp_path, hostile, name, workers) -> None:
    assert script(hostile, name, *workers) == pytest.approx(NORM)
    assert marked(tmp_path) == []


@LONG
@pytest.mark.parametrize("name", FORMS)
def test_nor_does_it_above_the_size_from_which_workers_are_used(
    tmp_path, large, monkeypatch, name
) -> None:
    processes = []

    def start(self: IsolatedProcess, *given: object) -> None:
        processes.append(self)
        begin(self, *given)

    begin = IsolatedProcess.__init__
    monkeypatch.setattr(IsolatedProcess, "__init__", start)
    monkeypatch.chdir(traps(large, tmp_path / "marks"))
    done = CliRunner().invoke(command, ["drift", name, name], catch_exceptions=False)
    assert "the two checkpoints are equal" in done.output
    assert processes
    assert marked(tmp_path) == []


def environment(folder: Path, *, user_site: bool = False) -> tuple[Path, Path]:
    """A new virtual environment with gradwatch's dependencies: its Python and site-packages."""
    venv.create(folder, with_pip=False, symlinks=True, system_site_packages=user_site)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{INSTALLED}\n")
    return folder / "bin" / "python", site


FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "gradwatch":
            return spec_from_file_location(name, {init!r}, submodule_search_locations=[{folder!r}])

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize(
    "kind",
    [
        *("finder", "user"),
        *(pytest.param(kind, marks=LONG) for kind in ("path", "link", "pth", "wheel")),
    ],
)
def test_gradwatch_is_found_however_it_is_installed(tmp_path, hostile, kind) -> None:
    python, site = environment(tmp_path / "env", user_site=kind == "user")
    variables = {"PYTHONPATH": str(SOURCE) if kind == "path" else ""}
    package = SOURCE / "gradwatch"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "gradwatch").symlink_to(package)
        variables["PYTHONPATH"] = str(tmp_path / "elsewhere")
    if kind == "pth":
        (site / "__editable__.gradwatch.pth").write_text(f"{SOURCE}\n")
    if kind == "finder":
        (site / "editable_finder.py").write_text(
            FINDER.format(init=str(package / "__init__.py"), folder=str(package))
        )
        (site / "__editable__.gradwatch.pth").write_text("import editable_finder\n")
    if kind == "user":
        variables["PYTHONUSERBASE"] = str(tmp_path / "user")
        user = tmp_path / "user" / site.relative_to(tmp_path / "env")
        shutil.copytree(package, user / "gradwatch")
    if kind == "wheel":
        shutil.copytree(package, site / "gradwatch")
    found = script(hostile, "new.pt", "--workers", "1", python=python, **variables)
    assert found == pytest.approx(NORM)
    assert marked(tmp_path) == []


def test_each_package_is_the_callers_own_where_a_folder_holds_both(tmp_path, safe) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "numpy").symlink_to(INSTALLED / "numpy")
    canaries(second, ["numpy"], tmp_path / "marks")
    (second / "gradwatch").symlink_to(SOURCE / "gradwatch")
    script(safe, "new.pt", "--workers", "1", PYTHONPATH=f"{first}:{second}")
    assert marked(tmp_path) == []


def test_a_worker_lives_in_the_root_folder_with_three_places_to_import_from() -> None:
    from gradwatch.checkpoints.isolated import Workers

    with Workers(1) as pool:
        folder = pool.submit(os.getcwd).result()
        path = pool.submit(eval, "__import__('sys').path").result()
    assert folder == "/"
    assert path[-2:] == [str(SOURCE), str(INSTALLED)]
    assert not [place for place in path[:-2] if "site-packages" in place or place == ""]


def test_a_script_needs_no_guard_and_is_not_run_again(tmp_path, safe) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import gradwatch\nprint('begun')\n"
        "print(gradwatch.scan('a.safetensors', workers=2).names)\n"
    )
    done = subprocess.run(
        [sys.executable, str(file)], cwd=safe, env={"PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "begun"
    assert "fc.weight" in done.stdout
    assert done.stdout.count("begun") == 1


def test_refusals_name_the_path_as_it_was_given(tmp_path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "bad.pt").write_bytes(b"PK\3\4" + bytes(100))
    done = subprocess.run(
        [sys.executable, "-c", CONSOLE, "weights", "m/bad.pt"], cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("gradwatch: m/bad.pt is not a usable zip archive")
