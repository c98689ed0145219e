"""`gradwatch diagnose` as a person runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def gradwatch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradwatch", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def sick_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training whose second layer the optimizer never got."""
    torch = pytest.importorskip("torch")
    from gradwatch.live import watch

    nn = torch.nn
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    given = [*model[0].parameters(), *model[4].parameters()]
    optimizer = torch.optim.Adam(given, 3e-3)
    folder = tmp_path_factory.mktemp("runs") / "sick"
    with watch(model, optimizer, run=folder) as watcher:
        for _ in range(60):
            inputs = torch.randn(32, 6)
            loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
            model.zero_grad()
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
    return folder


def test_a_sick_run_is_named_with_its_layer_and_exits_with_one(sick_run: Path) -> None:
    result = gradwatch("diagnose", str(sick_run))
    assert result.returncode == 1, result.stderr
    assert "not-updated" in result.stdout
    assert "no optimizer" in result.stdout
    assert "gradwatch explain not-updated" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_json_is_strict_and_complete(sick_run: Path) -> None:
    result = gradwatch("diagnose", str(sick_run), "--json")
    data = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert data["format"] == 1
    assert data["findings"][0]["check"] == "not-updated"
    assert data["findings"][0]["layers"] == ["2"]
    assert data["verdict"] == "sick"


def test_a_missing_run_exits_with_three(tmp_path: Path) -> None:
    result = gradwatch("diagnose", str(tmp_path / "nothing"))
    assert result.returncode == 3
    assert result.stderr.startswith("gradwatch:")
    assert "Traceback" not in result.stderr
