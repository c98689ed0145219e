"""A tiny driver: calls signals as the watcher does, around a plain training step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.stats import Family

EVERYTHING = frozenset(Family)
ONLY_PROBE = frozenset({Family.PROBE})


def collected(signal: Any, step: int) -> dict[str, dict[str, Any]]:
    """What one step gave: layer → statistic → value, with `state`, and the subject beside it."""
    found: dict[str, dict[str, Any]] = {}
    for _, subjects, rows, states in signal.collect(step):
        for subject, row, state in zip(subjects, rows, states, strict=True):
            values = {name: row[name].item() for name in row.dtype.names}
            found[subject.name] = {**values, "state": int(state), "subject": subject}
    return found


def drive(
    signal: Any,
    model: nn.Module,
    loss_of: Callable[[nn.Module], torch.Tensor],
    *,
    steps: int = 1,
    due: frozenset[Family] = EVERYTHING,
    before: Callable[[int], None] | None = None,
    lr: float = 0.0,
) -> list[dict[str, dict[str, Any]]]:
    """Train `steps` steps with SGD; the rows of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    signal.attach()
    seen = []
    for step in range(steps):
        signal.arm(step, due)
        if before is not None:
            before(step)
        optimizer.zero_grad()
        loss_of(model).backward()
        seen.append(collected(signal, step))
        optimizer.step()
    return seen


def hook_count(modules: Iterable[nn.Module]) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)


class Divide(nn.Module):
    """Divides by the number of positive entries: NaN for a row without any."""

    def forward(self, x: Tensor) -> Tensor:
        kept = x.relu()
        out: Tensor = kept / (kept > 0).sum(-1, keepdim=True)
        return out
