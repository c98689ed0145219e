"""Which samples went into which step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradwatch.record import watch
from gradwatch.record.logs import SampleIds, plain_ids
from gradwatch.store import open_run


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.tensor([3, 1, 2]), [3, 1, 2]),
        (np.array([[4, 5]]), [4, 5]),
        ([torch.tensor(7), np.int64(8), 9.0], [7, 8, 9]),
        (["a.png", "b.png"], ["a.png", "b.png"]),
        (range(3), [0, 1, 2]),
        (12, [12]),
        ("one", ["one"]),
    ],
)
def test_ids_of_any_kind(given: object, expected: list[object]) -> None:
    assert plain_ids(given) == expected


def test_only_so_many_are_kept() -> None:
    batches = SampleIds()
    for step in range(100):
        batches.keep(step, range(5000))
    kept = batches.info()["batches"]
    assert [step for step, _ in kept] == list(range(36, 100))
    assert all(len(ids) == 1024 for _, ids in kept)
    assert SampleIds().info() == {}


def test_micro_batches_of_one_step_are_put_together() -> None:
    batches = SampleIds()
    batches.keep(0, [1, 2])
    batches.keep(0, [3])
    assert batches.info()["batches"] == [[0, [1, 2, 3]]]


def test_the_batch_of_the_first_bad_loss_is_in_the_run(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watcher = watch(model, optimizer, run=tmp_path / "run")
    for step in range(80):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2)).mean()
        loss.backward()
        bad = float("nan") if step in (30, 31) else loss
        watcher.log(loss=bad, batch=torch.arange(step, step + 3))
        optimizer.step()
    watcher.close()
    info = open_run(tmp_path / "run").info
    assert info["bad_batch"] == {"step": 30, "ids": [30, 31, 32]}
    assert info["batches"][-1] == [79, [79, 80, 81]]
    assert len(info["batches"]) == 64
