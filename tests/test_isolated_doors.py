"""Through every door (commands, functions, MCP, the server): no code of a stranger's folder runs.

The folder has a canary in place of every module. The script that runs lies elsewhere, as the
console script does: Python itself would put the folder of a script first.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.canaries import checkpoints, console, recorded, traps
from tests.server.visiting import served

import gradwatch
from gradwatch.cli.main import COMMANDS

WORDS = {
    "show": ["show runs/first", "show runs/first --json --signals", "show runs/first --ranks"],
    "diagnose": ["diagnose runs/first --json"],
    "explain": ["explain", "explain vanishing-gradient"],
    "zoo": ["zoo"],
    "analyze": ["analyze runs/first --json", "analyze arrays"],
    "report": ["report runs/first -o ../report.html --force"],
    "weights": [
        "weights new.pt --workers 2 --json",
        "weights distributed --spectrum -o ../weights.html --force",
        "weights a.npz old.pt",
    ],
    "drift": ["drift new.pt shards --workers 2", "drift old.pt a.safetensors --json"],
    "animate": [f"animate runs/first -o ../flow.{kind} --force" for kind in ("txt", "html", "gif")],
    "export": [
        *(f"export runs/first -o ../run.{kind} --force" for kind in ("csv", "json", "parquet")),
        "export runs/first --tensorboard ../events --force",
        "export runs/first -o ../copies/first/",
    ],
    "runs": ["runs", "runs . --json"],
    "doctor": ["doctor --json"],
    "completion": ["completion bash"],
}
"""The commands that end by themselves."""
LASTING = {"mcp", "serve"}
WITH_TORCH = {"zoo", "doctor"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = checkpoints(tmp_path_factory.mktemp("doors") / "hostile")
    recorded(folder / "runs" / "first")
    (folder / "arrays").mkdir()
    np.savez(folder / "arrays" / "gradients.npz", layer=np.ones((30, 2)))
    return traps(folder, folder.parent / "marks")


@pytest.fixture
def hostile(made) -> Iterator[Path]:
    """Who has run there, is asked after the test."""
    yield made
    assert list((made.parent / "marks").iterdir()) == []


def test_every_command_is_tried() -> None:
    assert WORDS.keys() | LASTING == COMMANDS.keys()


ONE_AFTER_ANOTHER = """
import json, sys
from gradwatch.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        main(words.split())
    except SystemExit as end:
        assert end.code in (0, 1), (words, end.code)
"""


def test_the_commands_run_none_of_its_modules(hostile) -> None:
    words = [lines[0] for name, lines in WORDS.items() if name not in WITH_TORCH]
    done = console(hostile, json.dumps(words), script=ONE_AFTER_ANOTHER)
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr


@pytest.mark.security
@pytest.mark.parametrize("words", [line for lines in WORDS.values() for line in lines])
def test_each_command_alone_runs_none_of_its_modules(hostile, words) -> None:
    done = console(hostile, *words.split())
    assert done.returncode in (0, 1), done.stderr
    assert "rror" not in done.stderr


@pytest.mark.security
def test_nor_do_the_processes_that_score_the_zoo(hostile) -> None:
    script = (
        "from gradwatch.zoo.families import EVERY\n"
        "from gradwatch.zoo.score import score\n"
        "from gradwatch.zoo.training import Length\n"
        "if __name__ == '__main__':\n"
        "    names = [family.name for family in EVERY][:2]\n"
        "    print(len(score(names, [1], jobs=2, length=Length('short')).rows))\n"
    )
    done = console(hostile, script=script)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


FUNCTIONS = """
import sys
import gradwatch
from gradwatch.checkpoints import drift
doors = [getattr(gradwatch, name) for name in sys.argv[1:]]
drift("new.pt", "a.npz")
gradwatch.analyze_drift(gradwatch.scan("a.safetensors", workers=1), gradwatch.scan("shards"))
run = gradwatch.open_run("runs/first")
gradwatch.diagnose(run)
for analyze in (gradwatch.analyze_weights, gradwatch.analyze_gradients, gradwatch.analyze_flow):
    analyze(run)
print(len(doors))
"""


def test_the_functions_run_none_of_its_modules(hostile) -> None:
    doors = [name for name in gradwatch.__all__ if name not in ("watch", "Watcher")]  # no files
    done = console(hostile, *doors, script=FUNCTIONS)
    assert (done.stdout, done.returncode) == (f"{len(doors)}\n", 0), done.stderr


def test_the_server_runs_none_of_its_modules(hostile, monkeypatch) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # for `-m`, to begin as the console script does
    with served(Path("runs")) as (_, client):
        (run,) = client.get("/api/runs").json()["runs"]
        assert client.get(f"/api/runs/{run['id']}/view").status_code == 200
