"""SIGKILL at random instants: nothing acknowledged is lost, nothing is wrong."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.tally import Tally

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KILLS") or 45)
"""`make test-faults KILLS=10000` sets it; this many are enough for `make test`."""
POOLS = 2


def campaign(kills: int, seed: int, *words: str) -> dict:
    # in memory where possible: a kill loses nothing that was written, whatever it lies on
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        command = [sys.executable, "-m", "tests.faults.kill_campaign", folder, kills, seed, *words]
        done = subprocess.run(
            [str(part) for part in command], cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_check_notices_a_liar():
    result = campaign(5, 0, "sabotage")
    assert result["fired"] == 5
    assert result["failures"]


@pytest.mark.timeout(300 + 2 * KILLS)
def test_kills(capsys):
    with ThreadPoolExecutor(POOLS) as pool:
        results = list(pool.map(lambda n: campaign(KILLS // POOLS, 100_000 * n), range(POOLS)))
    tally = Tally("SIGKILLs")
    for result in results:
        tally.counted += result["counted"]
        tally.fired += result["fired"]
        tally.failures += result["failures"]
    done = {name: sum(result[name] for result in results) for name in results[0]["work"]}
    with capsys.disabled():
        print(f"\n{done}", end="")
    assert done["acknowledged"] > KILLS * 5
    assert done["rows"] > KILLS // 2  # files: several kinds of work were under way
    assert done["rollups/*-100"] > KILLS // 4
    assert done["rollups/*-1000"] > KILLS // 10
    assert done["retention"] > KILLS // 50
    tally.settle(capsys, KILLS // POOLS * POOLS)
