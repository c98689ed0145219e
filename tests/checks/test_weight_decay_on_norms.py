"""What `weight-decay-on-norms` mentions, and what it leaves alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checks.shapes import Severity, make_run, only, said, table, weight
from tests.checks.trainings import loud, mlp, plain, record

from gradwatch.run import Run, Subject
from gradwatch.stats import Kind

NAME = "weight-decay-on-norms"


def trained(path: Path, decay: float, apart: bool) -> Run:
    model = mlp(norm=True)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    parameters = groups if apart else model.parameters()
    optimizer = torch.optim.AdamW(parameters, 0.01, weight_decay=decay)
    return record(path, model, optimizer, each=plain(model, optimizer))


def test_one_group_for_everything(tmp_path: Path) -> None:
    run = trained(tmp_path, 0.1, apart=False)
    finding = only(NAME, run)
    assert (finding.severity, finding.layers) == (Severity.INFO, ())
    assert finding.tensors == ("0.bias", "1.weight", "1.bias", "3.bias")
    assert "decay of 0.1 acts on 1 norm gain and 3 biases" in finding.message
    gone = 1 - (1 - 0.01 * 0.1) ** 60
    assert f"takes {100 * gone:.0f} %" in finding.message
    assert not loud(run)


def test_two_groups(tmp_path: Path) -> None:
    assert not said(NAME, trained(tmp_path, 0.1, apart=True))


@pytest.mark.parametrize(("rate", "found"), [(2e-3, True), (1e-3, False)])
def test_a_decay_that_nobody_feels(rate: float, found: bool) -> None:
    """60 steps with a decay of 0.1: 0.012 and 0.006."""
    gain = weight("norm", shape=(8,), module="LayerNorm")
    run = make_run(
        {"lr": table([np.full(60, rate)], 60)},
        subjects=[gain, weight("a"), Subject(Kind.GROUP, "group 0", group=0)],
        info={
            "optimizers": [
                {
                    "optimizer": "AdamW",
                    "parameters": 2,
                    "foreign": 0,
                    "groups": [{"group": 0, "weight_decay": 0.1}],
                }
            ]
        },
    )
    assert bool(said(NAME, run)) is found
