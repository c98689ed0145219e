"""A stranger's folder: what gradwatch can open, among modules that mark that they ran."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from tests.checkpoints.files import floats
from torch import nn

import gradwatch

SOURCE = Path(gradwatch.__file__).parents[1]
INSTALLED = Path(np.__file__).parents[1]
EVERY = {
    *sys.stdlib_module_names,
    *(module.name for module in iter_modules([str(INSTALLED)])),
    *("gradwatch", "sitecustomize", "usercustomize"),
}
"""Whatever gradwatch could import, the packages of this environment included."""
CONSOLE = (
    "import sys\nfrom gradwatch.cli.main import main\nif __name__ == '__main__':\n    main()\n"
)
"""The script that an installation puts on the PATH."""
PICKLED = ("new.pt", "old.pt", "distributed", "pickled-shards")
"""Read by a child; a folder of shards by one for each."""
FORMS = (*PICKLED, "a.safetensors", "shards", "a.npz", "a.npy")


def canaries(folder: Path, names: Iterable[str], marks: Path) -> Path:
    """A module of each name that adds a line to a file of its name in `marks`."""
    folder.mkdir(exist_ok=True)
    marks.mkdir(exist_ok=True)
    for name in names:
        mark = str(marks / name)
        (folder / f"{name}.py").write_text(f"open({mark!r}, 'a').write('ran\\n')\n")
    return folder


def traps(folder: Path, marks: Path) -> Path:
    """A canary for every module, and whatever else Python takes code from."""
    canaries(folder, EVERY, marks)
    mark = str(marks / "pth")
    (folder / "packages.pth").write_text(f"import os; open({mark!r}, 'a').write('ran')\n")
    (folder / "pyvenv.cfg").write_text("home = .\ninclude-system-site-packages = true\n")
    return folder


def poison(folder: Path) -> dict[str, str]:
    """Variables by which Python and libraries take code, all of which lead into a folder."""
    library = str(folder / "library.so")
    return {
        "PYTHONPATH": str(folder),
        "PYTHONHOME": str(folder),
        "PYTHONUSERBASE": str(folder),
        "PYTHONPLATLIBDIR": str(folder),
        "PYTHONPYCACHEPREFIX": str(folder),
        "PYTHONEXECUTABLE": str(folder / "python"),
        "PYTHONSTARTUP": str(folder / "code.py"),
        "PYTHONINSPECT": "1",
        "PYTHONBREAKPOINT": "code.interact",
        "PYTHONWARNINGS": "error::code.Category",
        "PYTHON_PRESITE": "code",
        "LD_PRELOAD": library,
        "LD_AUDIT": library,
        "GCONV_PATH": str(folder),
        "OPENSSL_CONF": str(folder / "openssl.cnf"),
        "OPENSSL_MODULES": str(folder),
        "OMP_TOOL_LIBRARIES": library,
        "ARROW_LIBHDFS_DIR": str(folder),
        "HADOOP_HOME": str(folder),
    }


def weight(width: int) -> NDArray[np.float32]:
    """The matrix in each of the checkpoints."""
    return np.random.default_rng(3).standard_normal((40, width), np.float32)


def checkpoints(folder: Path, width: int = 30) -> Path:
    """One of each of the `FORMS`, all with the same weights."""
    folder.mkdir(exist_ok=True)
    arrays = {"fc.weight": weight(width), "fc.bias": np.linspace(0, 1, 40, dtype=np.float32)}
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    torch.save(state, folder / "new.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    dcp.save(state, checkpoint_id=folder / "distributed", no_dist=True)  # type: ignore[attr-defined]
    floats(folder / "a.safetensors", **_named(arrays))
    np.savez(folder / "a.npz", **arrays)  # type: ignore[arg-type]
    np.save(folder / "a.npy", arrays["fc.weight"])
    for name, ending in (("shards", "safetensors"), ("pickled-shards", "bin")):
        shards = folder / name
        shards.mkdir()
        files = {tensor: f"{number}.{ending}" for number, tensor in enumerate(arrays)}
        (shards / f"model.{ending}.index.json").write_text(json.dumps({"weight_map": files}))
        for tensor, file in files.items():
            if ending == "bin":
                torch.save({tensor: state[tensor]}, shards / file)
            else:
                floats(shards / file, **_named({tensor: arrays[tensor]}))
    return folder


def _named(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, Any]:
    return {name.replace(".", "__"): array for name, array in arrays.items()}


def recorded(run: Path) -> None:
    """A short training."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watcher = gradwatch.watch(model, optimizer, run=run)
        for _ in range(30):
            loss = model(torch.randn(16, 12)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log(loss=loss)
        watcher.close()


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without Python's own variables, and the source that this test run imports."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(SOURCE), **variables}


def console(
    folder: Path,
    *words: str,
    python: Path | str = sys.executable,
    script: str = CONSOLE,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A script that lies elsewhere, run in this folder: the console script, or another."""
    file = folder.parent / "bin" / "gradwatch"
    file.parent.mkdir(exist_ok=True)
    file.write_text(script)
    return subprocess.run(
        [str(python), str(file), *words], cwd=folder, capture_output=True, text=True,
        env=clean_environment() if variables is None else dict(variables), timeout=200, check=False,
    )  # fmt: skip
