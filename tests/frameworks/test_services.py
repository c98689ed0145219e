"""Forwarding through the real packages, offline, read back by their own readers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradwatch


def train(tmp_path: Path, service: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watcher = gradwatch.watch(net, optimizer, run=tmp_path / "run", forward=service)
    for _ in range(30):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        watcher.log(loss=loss)
        optimizer.step()
    watcher.close()


def test_tensorboard_reads_what_was_forwarded(tmp_path: Path) -> None:
    train(tmp_path, "tensorboard")
    events = accumulated(tmp_path / "run" / "tensorboard")
    assert {"gradwatch/loss", "gradwatch/grad_norm"} <= set(events.Tags()["scalars"])
    last = events.Scalars("gradwatch/grad_norm")[-1]
    run = gradwatch.open_run(tmp_path / "run")
    norms = run.series["grad_norm"][last.step]
    assert last.value == pytest.approx(float((norms**2).sum() ** 0.5), rel=1e-5)
    assert len(events.Scalars("gradwatch/grad_norm")) < 30  # never a flood


def test_mlflow_has_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the slim package has no database
    import mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        train(tmp_path, "mlflow")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "gradwatch/grad_norm")
    assert history
    assert history[-1].step == 29


def test_wandb_offline_holds_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    run = wandb.init(dir=str(tmp_path), project="p")
    train(tmp_path, "wandb")
    summary = dict(run.summary)
    run.finish()
    assert summary["gradwatch/grad_norm"] > 0
    assert list(tmp_path.rglob("*.wandb"))


def test_trackio_stores_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    import sqlite3

    train(tmp_path, "trackio")
    (database,) = (tmp_path / "trackio").rglob("*.db")
    rows = sqlite3.connect(database).execute("select metrics from metrics").fetchall()
    logged: list[dict[str, Any]] = [json.loads(row[0]) for row in rows]
    assert any("gradwatch/grad_norm" in item for item in logged)


def accumulated(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0})
    events.Reload()
    return events


def test_tensorboard_reads_an_exported_run(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from gradwatch.cli.main import gradwatch as program

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    with gradwatch.watch(net, optimizer, run=tmp_path / "run") as watcher:
        for _ in range(12):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
    run = gradwatch.open_run(tmp_path / "run")
    command = ["export", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "events")]
    assert CliRunner().invoke(program, command).exit_code == 0
    events = accumulated(tmp_path / "events")
    got = [(item.step, item.value) for item in events.Scalars("loss")]
    known = [
        (int(s), float(v)) for s, v in zip(run.steps, run.scalars["loss"], strict=True) if v == v
    ]
    assert [step for step, _ in got] == [step for step, _ in known]
    assert [v for _, v in got] == pytest.approx([v for _, v in known], rel=1e-6)
    name = "0.weight"
    norms = [item.value for item in events.Scalars(f"grad_norm/{name}")]
    assert norms == pytest.approx([v for v in run.column("grad_norm", name) if v == v], rel=1e-6)
    histogram = events.Histograms(f"grad/{name}")[0].histogram_value
    ours = run.histograms("grad", name)[events.Histograms(f"grad/{name}")[0].step]
    assert histogram.num == 32
    assert sum(histogram.bucket) == ours.count
    again = CliRunner().invoke(program, command)
    assert "already holds event files" in str(again.exception)
