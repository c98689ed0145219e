"""The Triton kernel through Triton's interpreter, which needs a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@needs_triton
@pytest.mark.timeout(900)  # some 30 s of a quiet core
def test_cases_through_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", str(Path(__file__).with_name("triton_cases.py"))],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@needs_triton
@pytest.mark.long
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)])
def test_it_compiles_and_reads_16_bytes_at_once(target: tuple[str, int | str, int]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gradwatch.record.triton import KINDS, OPTIONS, TILE, measure

    for kind in KINDS.values():
        for rows in (False, True):
            types = {"lines": "*i64", "programs": "*i64", "partial": "*fp64", "touched": "*i8"}
            constants = {"KIND": kind, "TILE": TILE, "ALIGNED": True, "ROWS": rows}
            source = ASTSource(measure, types | dict.fromkeys(constants, "constexpr"), constants)
            made = triton.compile(source, target=GPUTarget(*target), options=OPTIONS)
            text = made.asm["ptx" if target[0] == "cuda" else "amdgcn"]
            assert ("ld.global.v4" if target[0] == "cuda" else "load_dwordx4") in text


@needs_triton
def test_on_a_cpu_it_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwatch.record.triton import hindrance

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "TRITON_INTERPRET=1" in hindrance(torch.device("cpu"))
    assert hindrance(torch.device("cuda")) == ""
    assert hindrance(torch.device("mps")) != ""
    monkeypatch.setattr("triton.__version__", "3.1.0")
    assert "older than 3.2" in hindrance(torch.device("cuda"))
