"""The live page is a process of its own: what becomes of it does not concern the training."""

import subprocess
import sys
import time
from pathlib import Path

from tests.server.visiting import WAIT, served

import gradwatch

TRAINING = """
import sys, time
from pathlib import Path
import torch
from torch import nn
import gradwatch
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
folder = Path(sys.argv[1])
with gradwatch.watch(model, optimizer, run=folder / "run") as watcher:
    step = 0
    while not (folder / "enough").exists() or step < 100:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
        time.sleep(0.01)
        step += 1
print(step)
"""


def test_a_dashboard_that_is_killed_does_not_concern_the_training(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TRAINING, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as training:
        try:
            with served(tmp_path) as (server, client):
                until, seen = time.monotonic() + WAIT, 0
                while seen != 200 and time.monotonic() < until:  # it is there before its first row
                    for run in client.get("/api/runs").json()["runs"]:
                        seen = client.get(f"/api/runs/{run['id']}/view").status_code
                assert seen == 200
                server.kill()
                assert server.wait(WAIT) == -9
            (tmp_path / "enough").touch()
            said, _ = training.communicate(timeout=WAIT)
        finally:
            training.kill()
    assert training.returncode == 0
    run = gradwatch.open_run(tmp_path / "run")
    assert run.info["complete"]
    assert len(run.steps) == int(said) + 1  # and the weights after the last
