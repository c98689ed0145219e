"""SIGKILL at random instants: nothing acknowledged is lost, nothing is wrong."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.tally import Tally

ROOT = Path(__file__).parents[2]
KILLS = 210
POOLS = 3


def campaign(folder: Path, kills: int, seed: int, *words: str) -> dict:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.faults.kill_campaign", folder, kills, seed, *words]
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_check_notices_a_liar(tmp_path):
    result = campaign(tmp_path / "liar", 5, 0, "sabotage")
    assert result["fired"] == 5
    assert result["failures"]


def test_kills(tmp_path, capsys):
    with ThreadPoolExecutor(POOLS) as pool:
        results = list(
            pool.map(lambda n: campaign(tmp_path / str(n), KILLS // POOLS, 1000 * n), range(POOLS))
        )
    tally = Tally("SIGKILLs")
    for result in results:
        tally.counted += result["counted"]
        tally.fired += result["fired"]
        tally.failures += result["failures"]
    assert sum(result["acknowledged"] for result in results) > KILLS * 5
    assert sum(result["sealed"] for result in results) > KILLS // 4
    tally.settle(capsys, 200)
