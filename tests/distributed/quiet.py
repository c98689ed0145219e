"""Counts the collectives of a DDP and an FSDP2 training, watched and not."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from tests.distributed.cases import batch, ddp, fsdp, loss_of, network
from torch import nn
from torch.profiler import ProfilerActivity, profile

import gradwatch

STEPS = 4


def collectives(
    folder: Path, spread: Callable[..., nn.Module], rank: int, *, watched: bool
) -> Counter[str]:
    model = spread(network(), dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watcher = None
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        if watched:
            watcher = gradwatch.watch(model, optimizer, run=folder / spread.__name__, every=1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, *batch(step, 0, rank))
            loss.backward()
            if watcher:
                watcher.log(loss=loss)
            optimizer.step()
        if watcher:
            watcher.close()
    names = [event.name for event in seen.events()]
    return Counter(n for n in names if n.startswith(("c10d::", "gloo:", "_c10d_functional")))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder, rank = Path(sys.argv[1]), dist.get_rank()
    found = {}
    for spread in (ddp, fsdp):
        bare = collectives(folder, spread, rank, watched=False)
        found[spread.__name__] = [bare, collectives(folder, spread, rank, watched=True)]
    (folder / f"collectives.{rank}.json").write_text(json.dumps(found))
    dist.barrier()  # gloo aborts a rank whose partner has gone
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
