"""The truth: the same training in one process, in float64, over all ranks' batches."""

from dataclasses import dataclass, field

import torch
from tests.distributed.cases import CLIP, STEPS, Case, batch, loss_of, network


@dataclass
class Truth:
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    updates: list[dict[str, torch.Tensor]] = field(default_factory=list)
    clip: list[float] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    """Of every data rank: the last micro-batch's."""


def truth(case: Case) -> Truth:
    model = network(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = Truth()
    ranks = case.ranks // case.same_data
    for step in range(STEPS):
        optimizer.zero_grad()
        last = []
        for rank in range(ranks):
            for micro in range(case.micro_batches):
                inputs, targets = (t.double() for t in batch(step, micro, rank))
                loss = loss_of(model, inputs, targets)
                (loss / case.micro_batches / ranks).backward()
            last.append(loss.item())
        found.losses.append(last)
        found.gradients.append({n: _kept(p.grad) for n, p in model.named_parameters()})
        before = {n: _kept(p) for n, p in model.named_parameters()}
        found.weights.append(before)
        if case.clip:
            total = float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
            found.clip.append(min(1.0, CLIP / (total + 1e-6)))
        optimizer.step()
        found.updates.append({n: _kept(p) - before[n] for n, p in model.named_parameters()})
    return found


def _kept(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.detach().clone()
