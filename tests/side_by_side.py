"""Runs tests as two pytest processes at once, one for each core: `make test`, the quick ones.

The slow half is the part that trains and that kills processes; the rest runs beside it. Each half
prints the seconds of its suites (see conftest.py); the last line counts both halves. With a mark
as its argument it runs the tests that bear it: `make test-security`.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
QUICK = "not long and not timing and not security"
ELSEWHERE = ("frameworks",)  # make test-frameworks, in an environment of its own
FIRST = ("faults", "store", "record", "examples")
NO_TESTS = 5
BLAS = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "512"}
"""So that sums are added in the same order on every processor: golden outputs hold their digits."""


def main(mark: str = QUICK) -> int:
    begin = time.monotonic()
    folders = sorted(p.name for p in HERE.iterdir() if p.is_dir() and any(p.rglob("test_*.py")))
    folders = [name for name in folders if name not in ELSEWHERE]
    folders += sorted(path.name for path in HERE.glob("test_*.py"))  # of the modules on the ground
    halves = [
        [name for name in folders if name in FIRST],
        [name for name in folders if name not in FIRST],
    ]
    started = [_start(half, mark) for half in halves if half]
    counts = {"passed": 0, "failed": 0, "skipped": 0, "error": 0}
    failed = False
    for process, output in started:
        code = process.wait()
        failed |= code not in (0, NO_TESTS)
        text = Path(output).read_text(errors="replace")
        sys.stdout.write(text + "\n")
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", _closing(text)):
            counts[word] += int(number)
    print(f"these tests took {time.monotonic() - begin:.0f} s")
    bad = counts["failed"] + counts["error"]
    print(f"{counts['passed']} passed, {bad} failed, {counts['skipped']} skipped")
    return 1 if failed or not counts["passed"] else 0


def _start(folders: list[str], mark: str) -> tuple[subprocess.Popen[bytes], str]:
    with tempfile.NamedTemporaryFile(suffix=".txt", delete=False) as output:
        command = [sys.executable, "-m", "pytest", "-m", mark, *(f"tests/{n}" for n in folders)]
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=HERE.parent,
            env=os.environ | BLAS,
            start_new_session=True,
        )
        return process, output.name


def _closing(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
