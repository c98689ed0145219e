"""The whole kernel once more, under the address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src/gradwatch/kernel/native"
FLAGS = [
    *("-g", "-O1", "-std=c11", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared"),
    *("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-DPy_LIMITED_API=0x030B0000"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
]
SUITE = ("moments", "histogram", "rows", "step", "hashes", "boundary", "nonfinite", "gradients")

# The instrumented build takes the place of the installed one before anything imports it.
RUN = """
import importlib.util, sys
import pytest
spec = importlib.util.spec_from_file_location("gradwatch.kernel._native", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["gradwatch.kernel._native"] = module
from gradwatch.kernel import _native
assert _native is module
sys.exit(pytest.main(sys.argv[2:]))
"""


def build(folder: Path, *extra: str) -> Path:
    target = folder / "_native.so"
    include = sysconfig.get_path("include")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    subprocess.run(
        ["gcc", *FLAGS, *extra, f"-I{include}", *sources, "-o", str(target), "-lm", "-pthread"],
        check=True,
        timeout=600,
    )
    return target


def run(library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return subprocess.run(
        [sys.executable, "-c", RUN, str(library), "-s", *arguments],
        cwd=ROOT,
        env=os.environ
        # Python itself leaks by design; what we look for is reading and writing out of bounds.
        | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc's sanitizers")
def test_the_kernel_is_clean_under_the_sanitizers(tmp_path: Path) -> None:
    library = build(tmp_path)
    tests = [f"tests/kernel/test_{name}.py" for name in SUITE]
    # torch brings thousands of allocations of its own, and two tests are about its switch; the
    # sanitizer does not work where there is no memory.
    done = run(library, *tests, "-k", "not none and not flush and not created", "--timeout", "900")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert " passed" in done.stdout or "kernel" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc's sanitizers")
def test_the_sanitizers_would_notice_a_read_past_the_end(tmp_path: Path) -> None:
    # A block's worth of elements too few in memory: the batch lies about its count.
    (tmp_path / "test_lie.py").write_text(
        "import numpy as np\n"
        "from gradwatch import kernel\n"
        "def test_lie():\n"
        "    x = np.zeros(100, np.float32)\n"
        "    kernel.measure(kernel.Batch.of([x.ctypes.data], [4096], [0])).records\n"
    )
    done = run(build(tmp_path), str(tmp_path / "test_lie.py"))
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stdout + done.stderr


def build_threads(folder: Path, sources: Path) -> Path:
    """A program of the kernel without Python, under the thread sanitizer."""
    program, parts = folder / "threads", sorted(sources.glob("*.c"))
    subprocess.run(
        [
            *("gcc", "-g", "-O1", "-std=c11", "-ffp-contract=fast", "-fsanitize=thread"),
            *(
                "-Wall",
                "-Wextra",
                "-Werror",
                f"-I{sources}",
                str(Path(__file__).with_name("threads.c")),
            ),
            *(str(part) for part in parts if part.name != "module.c"),
            *("-o", str(program), "-lm", "-pthread"),
        ],
        check=True,
        timeout=600,
    )
    return program


def run_threads(program: Path) -> subprocess.CompletedProcess[str]:
    # With much randomness in addresses the sanitizer does not start on some kernels.
    still = [setarch, "-R"] if (setarch := shutil.which("setarch")) else []
    return subprocess.run(
        [*still, str(program)], capture_output=True, text=True, timeout=900, check=False
    )


def needs_thread_sanitizer(folder: Path) -> None:
    source, program = folder / "nothing.c", folder / "nothing"
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run(
        ["gcc", "-fsanitize=thread", str(source), "-o", str(program)],
        capture_output=True,
        check=False,
    )
    if built.returncode != 0 or run_threads(program).returncode != 0:
        pytest.skip("the thread sanitizer does not work here")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc's sanitizers")
def test_threads_do_not_race(tmp_path: Path) -> None:
    needs_thread_sanitizer(tmp_path)
    done = run_threads(build_threads(tmp_path, SOURCES))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc's sanitizers")
def test_the_thread_sanitizer_would_notice_a_race(tmp_path: Path) -> None:
    needs_thread_sanitizer(tmp_path)
    sabotaged = tmp_path / "native"
    shutil.copytree(SOURCES, sabotaged)
    passes = sabotaged / "passes.c"
    good = "__atomic_fetch_add(bins + i, own_bins[i], __ATOMIC_RELAXED)"
    text = passes.read_text()
    assert good in text
    passes.write_text(text.replace(good, "bins[i] += own_bins[i]"))
    done = run_threads(build_threads(tmp_path, sabotaged))
    assert done.returncode != 0
    assert "data race" in done.stdout + done.stderr
