"""What one rank runs: `torchrun -m tests.distributed.rank FOLDER CASE…` trains case after case."""

import contextlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tests.distributed.cases import CASES, CLIP, STEPS, Case, batch, loss_of, network

import gradwatch


def train(case: Case, folder: Path, rank: int) -> None:
    model = case.spread(network(), dist.get_world_size(), **case.options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=case.scaler, init_scale=1024.0)
    watcher = gradwatch.watch(
        model, optimizer, run=folder / case.name, scaler=scaler if case.scaler else None, every=1
    )
    local = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(case.micro_batches):
            loss = loss_of(model, *batch(step, micro, case.data_rank(rank))) / case.micro_batches
            with _quiet(case, model, micro):
                scaler.scale(loss).backward()
        local.append(_local_norm(case, step, rank) if step == 0 else None)
        if case.clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        watcher.log(loss=loss.detach() * case.micro_batches)
        scaler.step(optimizer)
        scaler.update()
    watcher.close()
    (folder / f"{case.name}.{rank}.json").write_text(json.dumps({"local": local[0]}))


def _quiet(
    case: Case, model: torch.nn.Module, micro: int
) -> contextlib.AbstractContextManager[None]:
    """DDP averages on the last micro-batch only."""
    last = micro == case.micro_batches - 1
    if isinstance(model, torch.nn.parallel.DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def _local_norm(case: Case, step: int, rank: int) -> float:
    """Norm of the gradient of this rank's own batch alone, from a copy of the model."""
    alone = network()
    for micro in range(case.micro_batches):
        loss = loss_of(alone, *batch(step, micro, case.data_rank(rank))) / case.micro_batches
        loss.backward()
    gradient = alone.first.weight.grad
    assert gradient is not None
    return float(gradient.double().norm())


def main() -> None:
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), set(sys.argv[2:])
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    for case in CASES:
        if case.name in names:
            train(case, folder, rank)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
