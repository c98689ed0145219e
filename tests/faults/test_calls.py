"""Every system call of the writer's thread fails in turn, or is the last one of its process."""

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.tally import WHOLE, Tally

ROOT = Path(__file__).parents[2]
FAULTS = ("before", "after", "amid", "EIO", "ENOSPC", "torn", "short")
SHORT = dict.fromkeys(FAULTS, 13) | {"amid": 4, "torn": 6, "short": 6}
STRIDES = dict.fromkeys(FAULTS, 1) if WHOLE else SHORT


def campaign(fault: str, *words: str) -> dict:
    # in memory where possible: a kill loses nothing that was written, whatever it lies on
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        command = [sys.executable, "-m", "tests.faults.call_campaign", folder, fault, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_check_notices_a_stream_removed_too_early():
    result = campaign("before", "13", "sabotage")
    assert any("steps of" in text or "missing" in text for text in result["failures"])


@pytest.mark.timeout(2400)
def test_every_call_goes_wrong_in_turn(capsys):
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda fault: campaign(fault, str(STRIDES[fault])), FAULTS)
    for fault, result in zip(FAULTS, results, strict=True):
        made = ", ".join(f"{count} {name}" for name, count in sorted(result["calls"].items()))
        tally = Tally(
            f"{fault} at the k-th call ({made})",
            result["counted"],
            result["fired"],
            result["failures"],
        )
        tally.settle(capsys, 5)
        if fault in ("before", "after", "EIO", "ENOSPC") and WHOLE:
            calls = {"open", "write", "fsync", "rename", "unlink", "mkdir"}
            assert set(result["calls"]) >= calls
