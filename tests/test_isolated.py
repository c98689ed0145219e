"""The processes that read for gradwatch, each kind of them, in a stranger's folder.

They are watched from their first instruction: Python itself tells (`-vv`) which files it looks
for, and the system in which folder and with which variables they begin.
"""

import os
import re
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.canaries import INSTALLED, PICKLED, SOURCE, checkpoints, poison, traps

from gradwatch.checkpoints.isolated import Workers
from gradwatch.checkpoints.readers import open_index

PACKAGES = {"numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "cloudpickle"}
"""pyarrow imports cloudpickle where there is one."""
VARIABLES = (
    r"PATH|LD_LIBRARY_PATH|LANG|LC_\w+|\w+_NUM_THREADS|GRADWATCH_\w+|ARROW_DEFAULT_MEMORY_POOL"
)
STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """Its name would be code, if it were put into a program as it is."""
    folder = tmp_path_factory.mktemp("hostile") / "'\nimport code\n\"\\\udcff"
    checkpoints(folder)
    (folder / "numpy.so").write_bytes(b"\x7fELF")  # who tries it, fails
    return traps(folder, folder.parent / "marks")


def worker() -> None:
    with Workers(1) as pool:
        assert pool.submit(os.getcwd).result() == "/"


LONG = pytest.mark.security
KINDS: dict[str, Callable[[], object]] = {
    **{form: lambda form=form: open_index(Path(form)) for form in PICKLED},  # type: ignore[misc]
    "worker": worker,
}


@pytest.fixture
def told(tmp_path, monkeypatch) -> Callable[[Callable[[], object]], str]:
    """What the processes that a function starts tell of themselves."""

    def watch(function: Callable[[], object]) -> str:
        reading, writing = os.pipe()  # no file: a process that may not write could not tell it
        ear = f"/proc/{os.getpid()}/fd/{writing}"
        wrapper = tmp_path / "python"
        wrapper.write_text(
            "#!/bin/sh\n"
            f"{{ readlink /proc/$$/cwd; tr '\\0' '\\n' </proc/$$/environ; }} >{ear}\n"
            f'exec "{sys.executable}" -vv "$@" 2>{ear}\n'
        )
        wrapper.chmod(stat.S_IRWXU)
        said: list[str] = []
        with os.fdopen(reading, encoding="utf-8") as source:
            listening = threading.Thread(target=lambda: said.append(source.read()))
            listening.start()
            monkeypatch.setattr(sys, "executable", str(wrapper))
            try:
                function()
            finally:
                os.close(writing)
                listening.join(60)
        return said[0]

    return watch


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in ("new.pt", "worker") else LONG) for kind in KINDS],
)
def test_what_they_look_for_is_in_known_places_and_nothing_names_others(
    hostile, told, monkeypatch, kind
) -> None:
    monkeypatch.chdir(hostile)
    for name, value in poison(hostile).items():
        monkeypatch.setenv(name, value)
    text = told(KINDS[kind])
    assert text.startswith("/\n")
    variables = re.findall(r"^(\w+)=", text, re.MULTILINE)
    assert "PATH" in variables
    assert [name for name in variables if not re.fullmatch(VARIABLES, name)] == []
    tried = re.findall(r"^# trying (.*)", text, re.MULTILINE)
    places = (*STANDARD, str(SOURCE), str(INSTALLED))
    assert {path for path in tried if not path.startswith(places)} == set()
    loaded = [Path(p) for p in re.findall(r"(?:code object|loaded) from '([^']+)'", text)]
    assert any(path.is_relative_to(SOURCE / "gradwatch") for path in loaded)
    installed = [path for path in loaded if path.is_relative_to(INSTALLED)]
    assert "numpy" in {path.relative_to(INSTALLED).parts[0] for path in installed} <= PACKAGES
    assert list((hostile.parent / "marks").iterdir()) == []
