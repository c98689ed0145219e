"""One verdict and one counting, in the same words on every door."""

import json
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from gradwatch.cli.main import gradwatch
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.live import say_where, watch
from gradwatch.server.runs import Library
from gradwatch.store import open_run

STEPS = 300


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that works, with a note, and a sick one with notes beside its finding."""
    folder = tmp_path_factory.mktemp("home")
    torch.set_num_threads(1)
    for name, depth, scale in (("well", 1, 1.0), ("ill", 6, 40.0)):
        torch.manual_seed(0)
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
        model = nn.Sequential(*hidden, nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        inputs = scale * torch.randn(512, 32)
        with watch(model, optimizer, run=folder / "runs" / name) as watcher:
            for _ in range(STEPS):
                rows = torch.randint(0, 512, (64,))
                loss = nn.functional.cross_entropy(model(inputs[rows]), inputs[rows, :4].argmax(1))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1 if depth > 1 else 1e9)
                watcher.log(loss)
                optimizer.step()
    return folder


@pytest.mark.parametrize("name", ["well", "ill"])
def test_every_door_says_the_same(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    found: Diagnosis = diagnose(open_run(f"runs/{name}"))
    assert found.verdict == ("sick" if name == "ill" else "notes")
    assert found.counts["notes"] > 0
    assert found.steps == STEPS

    def asked(*arguments: str) -> str:
        done = CliRunner().invoke(gradwatch, arguments, env={"COLUMNS": "120"})
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return " ".join(click.unstyle(done.stdout + done.stderr).split())

    said = f"{found.counted} in {found.layers} layers, {STEPS} steps"
    assert f"{found.verdict.capitalize()}: {said}" in asked("diagnose", name)
    assert f"{found.verdict} {name} {said}" in asked("show", name)
    assert f"{found.verdict}: {said}" in asked("report", name, "-o", f"{name}.html", "--force")
    asked("animate", name, "-o", f"{name}.txt", "--force")
    assert f"{name}: {found.verdict}, {said}" in Path(f"{name}.txt").read_text()
    assert f'"state":"{found.verdict}","line":"{said}' in Path(f"{name}.html").read_text()
    assert f"<b>{found.verdict}</b>: {said}" in found._repr_html_()

    judged = json.loads(asked("diagnose", name, "--json"))
    assert (judged["verdict"], judged["counts"]) == (found.verdict, found.counts)
    health = json.loads(asked("show", name, "--json"))["health"]
    assert (health["state"], health["counts"]) == (found.verdict, found.counts)
    (row,) = [r for r in json.loads(asked("runs", "--json"))["runs"] if r["name"] == name]
    assert (row["verdict"], row["counts"], row["steps"]) == (found.verdict, found.counts, STEPS)
    assert f"{found.verdict}, {found.counted}" in asked("runs")

    (asked_for,) = [run for run in Library(["runs"]).scan().values() if run.name == name]
    asked_for.prepare()
    served = asked_for.listed()
    assert (served["state"], served["steps"]) == (found.verdict, STEPS)
    assert served["line"].startswith(said)
    say_where(Path("runs").absolute() / name)
    assert f"runs/{name}: {found.verdict}, {found.counted}." in capsys.readouterr().err


def test_notes_take_one_line_until_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    found = diagnose(open_run("runs/ill"))
    for command in ("diagnose", "show"):
        text = CliRunner().invoke(gradwatch, [command, "ill"], env={"COLUMNS": "80"}).stdout
        notes = [line for line in text.splitlines() if line.startswith("note ")]
        assert len(notes) == found.counts["notes"]
        assert all(len(line) <= 80 for line in notes)
    whole = CliRunner().invoke(gradwatch, ["diagnose", "ill", "--verbose"]).stdout
    assert whole.count("Try: 1.") >= len(found.findings) - 1
    assert "--verbose" not in whole
