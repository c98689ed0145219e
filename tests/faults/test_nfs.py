"""A network file system: renames in two steps, answers lost, errors told late, readers with an old
view. Nothing acknowledged is lost, and no reader is ever given a wrong number."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.faults.tally import Tally

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`nfs.c`, compiled."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux" or sys.maxsize < 1 << 32:
        pytest.skip("needs a C compiler and a Linux of 64 bits")
    library = tmp_path_factory.mktemp("shim") / "nfs.so"
    options = ["-O1", "-shared", "-fPIC", "-ldl", "-o", library]
    subprocess.run([compiler, HERE / "nfs.c", *options], check=True)
    return library


def campaign(shim: Path, fault: str, *words: object) -> dict:
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        command = [sys.executable, "-m", "tests.faults.nfs_campaign", folder, fault, *words]
        done = subprocess.run(
            [str(part) for part in command],
            cwd=HERE.parents[1],
            env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def held(shim: Path, capsys: pytest.CaptureFixture[str], fault: str, *words: object) -> None:
    result = campaign(shim, fault, *words)
    tally = Tally(f"network file system, {fault}", **result)
    tally.settle(capsys, 2)


@pytest.mark.parametrize("fault", [("vanish", 1, 3), ("stale", 1)])
def test_a_few_of_each(shim, capsys, fault):
    held(shim, capsys, *fault)


@pytest.mark.security
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [("vanish", 1), ("resent", 1), ("late", 1), ("stale", 60)])
def test_every_call(shim, capsys, fault):
    held(shim, capsys, *fault)


@pytest.mark.security
def test_the_check_notices_a_writer_that_trusts_a_failed_sync(shim):
    failures = campaign(shim, "late", 1, 30, "sabotage")["failures"]
    assert any("missing" in text or "acknowledged" in text for text in failures)
