"""Short trainings that are watched as a user's would be."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from gradwatch.record import watch
from gradwatch.run import Run
from gradwatch.store import open_run

torch.set_num_threads(1)


def trained(
    folder: Path,
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    *,
    steps: int = 40,
    optimizer: torch.optim.Optimizer | None = None,
    as_number: bool = False,
    after: Callable[[int], Mapping[str, float]] | None = None,
    **options: Any,
) -> Run:
    """Train with plain SGD unless told otherwise; `after` gives numbers to log after a step."""
    if optimizer is None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    options.setdefault("budget", 1.0)
    # These runs need not survive a loss of power, and a busy disk takes a second for each.
    with patch("os.fsync"), watch(model, optimizer, run=folder / "run", **options) as watcher:
        for step in range(steps):
            loss = loss_of(step)
            watcher.log(loss=loss.item() if as_number else loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if after is not None and (numbers := after(step)):
                watcher.log(**numbers)
    return open_run(folder / "run")
