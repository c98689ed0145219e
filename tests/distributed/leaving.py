"""Ranks that leave: one changes a weight in silence, one is killed in the middle of a training."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tests.distributed.cases import batch, ddp, fsdp, loss_of, network

import gradwatch

STEPS, LEAVES_AT = 12, 5


def silently(folder: Path, rank: int) -> None:
    """Rank 1 adds a little to one weight of `odd` after step 4; nobody is told which folder."""
    os.chdir(folder)
    inner = network()
    model = ddp(inner, dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradwatch.watch(model, optimizer, every=1):
        for step in range(STEPS):
            if step == LEAVES_AT and rank == 1:
                with torch.no_grad():
                    inner.odd.weight[2, 3] += 1e-6
            optimizer.zero_grad()
            loss_of(model, *batch(step, 0, rank)).backward()
            optimizer.step()


def killed(folder: Path, rank: int) -> None:
    """Rank 1 dies without a word; rank 0 meets a broken connection, as any training would."""
    model = fsdp(network(), dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watcher = gradwatch.watch(model, optimizer, run=folder / "killed", every=1)
    for step in range(STEPS):
        if step == LEAVES_AT:
            assert watcher.flush(60)  # the launcher may end rank 0 as soon as rank 1 is dead
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        try:
            optimizer.zero_grad()
            loss_of(model, *batch(step, 0, rank)).backward()
        except RuntimeError:
            break
        optimizer.step()
    (folder / "survived").write_text(str(step))
    watcher.close()
    os._exit(0)  # the process group is broken: nothing to tidy up there


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"silently": silently, "killed": killed}[sys.argv[2]](Path(sys.argv[1]), dist.get_rank())


if __name__ == "__main__":
    main()
