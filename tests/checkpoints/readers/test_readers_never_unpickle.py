"""No process of ours unpickles what came from a file: held by a source scan and an audit hook."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checkpoints.files import floats

import gradwatch.checkpoints

SOURCE = Path(gradwatch.checkpoints.__file__).parent
FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
    "pickletools", "torch", "yaml", "runpy", "zipfile",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "load", "loads", "find_class"}


def offences(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names.append(getattr(node, "module", None) or "")
            found += [n for n in names if n.partition(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            function = node.func
            word = getattr(function, "attr", getattr(function, "id", ""))
            owner = getattr(getattr(function, "value", None), "id", "")
            if word in FORBIDDEN_CALLS and (owner, word) not in (
                ("json", "loads"),
                ("re", "compile"),
                ("machine", "load"),
            ):
                found.append(f"{owner}.{word}")
    return found


def test_the_source_names_nothing_that_unpickles() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert {"child.py", "pickles.py", "torch_files.py"} <= {path.name for path in files}
    for path in files:
        assert offences(path) == [], path


def test_the_scan_would_notice(tmp_path) -> None:
    (tmp_path / "a.py").write_text("import pickle\nfrom torch import load\nnp.load(x)\neval('1')\n")
    assert len(offences(tmp_path / "a.py")) == 4


AUDIT = """
import sys
seen = []
def hook(event, arguments):
    if event.startswith(("pickle.", "marshal.loads", "exec")) or event in ("import", "os.system"):
        if event == "import":
            name = arguments[0].partition(".")[0]
            if name in ("pickle_canary", "no_such_module_anywhere"):
                seen.append((event, name))
        elif event.startswith("pickle") or event == "os.system":
            seen.append((event, arguments[:2]))
{before}
sys.addaudithook(hook)
{body}
print("SEEN", seen)
"""


def audited(before: str, body: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AUDIT.format(before=before, body=body)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def files(tmp_path) -> list[str]:
    torch.save({"w": torch.ones(3, 2), "args": Path("x")}, tmp_path / "a.pt")
    old = {"w": torch.ones(3)}
    torch.save(old, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    np.savez(tmp_path / "c.npz", w=np.ones(3))
    floats(tmp_path / "d.safetensors", w=np.ones(3))
    return [str(tmp_path / name) for name in ("a.pt", "b.pt", "c.npz", "d.safetensors")]


def test_the_parent_unpickles_nothing(files) -> None:
    before = "from gradwatch.checkpoints import scan, drift"
    body = f"for path in {files!r}: scan(path)\ndrift({files[0]!r}, {files[1]!r})"
    assert audited(before, body) == "SEEN []"


def test_the_confined_reader_unpickles_nothing(files) -> None:
    before = "from pathlib import Path\nfrom gradwatch.checkpoints.readers.child import READERS"
    body = f"READERS['zip'](Path({files[0]!r})); READERS['stream'](Path({files[1]!r}))"
    assert audited(before, body) == "SEEN []"


def test_the_hook_would_notice() -> None:
    found = audited("import pickle", "pickle.loads(pickle.dumps(ValueError))")
    assert "pickle.find_class" in found


def test_reading_needs_no_torch(files) -> None:
    body = f"for path in {files!r}: scan(path)\nassert 'torch' not in sys.modules"
    assert audited("from gradwatch.checkpoints import scan", body) == "SEEN []"


def test_the_child_cannot_write_or_take_much_memory(tmp_path) -> None:
    code = """
import os
from gradwatch.checkpoints.readers.child import confine
confine()
try:
    os.write(os.open("written", os.O_WRONLY | os.O_CREAT), b"x" * 10)
    print("wrote")
except OSError:
    pass
try:
    b = bytearray(1 << 30)
    print("took memory")
except MemoryError:
    pass
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr
    written = tmp_path / "written"
    assert not written.exists() or not written.read_bytes()
