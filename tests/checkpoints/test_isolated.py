"""Inside a hostile folder: none of its modules runs, neither in the reading child nor in a worker.

Every stand-in module marks that it ran. `weights` is run as its console script is, with the source
that this test run imports.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.checkpoints.files import floats

import gradwatch

SOURCE = Path(gradwatch.__file__).parents[1]
INSTALLED = Path(np.__file__).parents[1]
OWN = {"gradwatch", "numpy", "sitecustomize", "usercustomize"}
CONSOLE = (
    "import sys\nfrom gradwatch.cli.main import main\nif __name__ == '__main__':\n    main()\n"
)
FILES = ["new.pt", "old.pt", "folder", "a.safetensors", "a.npz"]
WORKERS = [(), ("--workers", "2")]


def canaries(folder: Path, names: Iterable[str], marks: Path) -> None:
    """A module of each name that adds a line to a file of its name in `marks`."""
    folder.mkdir(exist_ok=True)
    marks.mkdir(exist_ok=True)
    for name in names:
        mark = str(marks / name)
        (folder / f"{name}.py").write_text(f"open({mark!r}, 'a').write('ran\\n')\n")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """One small checkpoint of each form."""
    folder = tmp_path_factory.mktemp("checkpoints")
    weight = np.random.default_rng(3).standard_normal((40, 30)).astype(np.float32)
    state = {"fc.weight": torch.from_numpy(weight)}
    torch.save(state, folder / "new.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    dcp.save(state, checkpoint_id=folder / "folder", no_dist=True)
    floats(folder / "a.safetensors", fc__weight=weight)
    np.savez(folder / "a.npz", **{"fc.weight": weight})
    return folder


@pytest.fixture(scope="module")
def loaded_by_caller(checkpoints) -> set[str]:
    """The top-level modules that the calling process has loaded when a command ends."""
    script = "import atexit, sys\natexit.register(lambda: print(*sys.modules))\n" + CONSOLE
    loaded: set[str] = set()
    for name in FILES:
        done = subprocess.run(
            [sys.executable, "-c", script, "weights", name, "--workers", "1"], cwd=checkpoints,
            env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        names = done.stdout.splitlines()[-1].split()
        loaded.update(name.partition(".")[0] for name in names)
    return loaded


@pytest.fixture
def hostile(tmp_path, checkpoints) -> Path:
    """The checkpoints among stand-ins for the whole standard library and what is ours."""
    folder = tmp_path / "hostile"
    shutil.copytree(checkpoints, folder)
    canaries(folder, OWN | sys.stdlib_module_names, tmp_path / "marks")
    return folder


def weights(
    folder: Path, *arguments: str, python: Path | str = sys.executable, **variables: str
) -> str:
    """What the console script prints in this folder."""
    script = folder.parent / "bin" / "gradwatch"
    script.parent.mkdir(exist_ok=True)
    script.write_text(CONSOLE)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), str(script), "weights", *arguments], cwd=folder, text=True,
        env={**environment, **variables}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def marked(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "marks").iterdir())


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", FILES)
def test_no_module_of_the_current_folder_runs(
    tmp_path, hostile, checkpoints, name, workers
) -> None:
    printed = weights(hostile, name, "--json", *workers, PYTHONPATH=str(SOURCE))
    assert marked(tmp_path) == []
    assert printed == weights(checkpoints, name, "--json", PYTHONPATH=str(SOURCE))


def test_nor_does_it_above_the_size_from_which_workers_are_used(tmp_path, hostile) -> None:
    weight = np.random.default_rng(4).standard_normal((4400, 4400), np.float32)
    floats(hostile / "large.safetensors", fc__weight=weight)
    torch.save({"fc.weight": torch.from_numpy(weight)}, hostile / "large.pt")
    for name in ("large.safetensors", "large.pt"):
        assert "fc.weight  4400×4400" in weights(hostile, name, PYTHONPATH=str(SOURCE))
    assert marked(tmp_path) == []


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", FILES)
def test_nothing_of_pythonpath_and_pythonstartup_reaches_them(
    tmp_path, checkpoints, loaded_by_caller, name, workers
) -> None:
    """The caller obeys these variables: only modules that it does not load itself can tell."""
    assert "resource" not in loaded_by_caller  # but the child loads it
    path = tmp_path / "path"
    here = {name for name in sys.stdlib_module_names if find_spec(name)}  # none of Windows'
    canaries(path, here - loaded_by_caller, tmp_path / "marks")
    canaries(path, ["sitecustomize", "usercustomize", "startup"], tmp_path / "marks")
    weights(
        checkpoints, name, *workers,
        PYTHONPATH=f"{path}:{SOURCE}", PYTHONSTARTUP=str(path / "startup.py"), PYTHONINSPECT="",
    )  # fmt: skip
    once = {"sitecustomize": "ran\n", "usercustomize": "ran\n"}
    found = {name: (tmp_path / "marks" / name).read_text() for name in marked(tmp_path)}
    assert found.items() <= once.items()  # by the caller, and by nobody else


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


@pytest.mark.parametrize("kind", ["path", "link", "pth", "finder", "user", "wheel"])
def test_gradwatch_is_found_however_it_is_installed(tmp_path, hostile, checkpoints, kind) -> None:
    python, site = environment(tmp_path / "env", user_site=kind == "user")
    variables = {"PYTHONPATH": str(SOURCE)} if kind == "path" else {}
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
    printed = weights(hostile, "new.pt", "--workers", "1", python=python, **variables)
    assert marked(tmp_path) == []
    assert printed == weights(checkpoints, "new.pt", PYTHONPATH=str(SOURCE))


def test_each_package_is_the_callers_own_where_a_folder_holds_both(tmp_path, checkpoints) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "numpy").symlink_to(INSTALLED / "numpy")
    canaries(second, ["numpy"], tmp_path / "marks")
    (second / "gradwatch").symlink_to(SOURCE / "gradwatch")
    weights(checkpoints, "new.pt", "--workers", "1", PYTHONPATH=f"{first}:{second}")
    assert marked(tmp_path) == []


def test_a_worker_lives_in_the_root_folder_with_three_places_to_import_from() -> None:
    from gradwatch.checkpoints.isolated import Workers

    with Workers(1) as pool:
        folder = pool.submit(os.getcwd).result()
        path = pool.submit(eval, "__import__('sys').path").result()
    assert folder == "/"
    assert path[-2:] == [str(SOURCE), str(INSTALLED)]
    assert not [place for place in path[:-2] if "site-packages" in place or place == ""]


def test_a_script_needs_no_guard_and_is_not_run_again(tmp_path, checkpoints) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gradwatch\nprint('begun')\n"
        "print(gradwatch.scan('a.safetensors', workers=2).names)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=checkpoints, env={"PYTHONPATH": str(SOURCE)},
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
