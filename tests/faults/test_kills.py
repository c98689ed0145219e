"""SIGKILL at random instants: nothing acknowledged is lost, nothing is wrong."""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults import victim
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


CHILD = """
import sys, time
from pathlib import Path
from tests.faults.victim import Victim
victim = Victim(Path(sys.argv[1]), 1)
while True:
    victim.put()
    print(victim.step, time.monotonic(), flush=True)
    time.sleep(0.01)
"""


def test_a_kill_costs_about_a_second_of_what_nobody_flushed(tmp_path):
    command = [sys.executable, "-c", CHILD, str(tmp_path / "run")]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    time.sleep(3.5)
    child.kill()
    killed = time.monotonic()
    told = [line.split() for line in child.communicate()[0].splitlines() if line.count(".") == 1]
    due = [int(step) for step, at in told if killed - float(at) > 1.5]
    assert len(due) > 20
    assert not victim.problems(tmp_path / "run", 1, due[-1])


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
    assert done["coarse"] > KILLS // 4
    assert done["histograms"] > KILLS // 4
    assert done["scalars"] + done["steps"] > KILLS // 10
    assert done["retention"] > KILLS // 50
    tally.settle(capsys, KILLS // POOLS * POOLS)
