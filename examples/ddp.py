"""DistributedDataParallel by torchrun under gradwatch: every rank records into one run.

    torchrun --nproc-per-node 2 examples/ddp.py

Added for gradwatch: the line with `gradwatch.watch` and the one with `watcher.log`, on every rank.
"""

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwatch

STEPS, BATCH = 300, 64


def main() -> None:
    distributed.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = DistributedDataParallel(model.append(nn.Linear(64, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + distributed.get_rank())  # from here on every rank has data of its own

    with gradwatch.watch(model, optimizer) as watcher:
        for _ in range(STEPS):
            x = torch.randn(BATCH, 2)
            y = (x.norm(dim=1) > 1.18).long()  # inside or outside a circle
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log(loss)
    if distributed.get_rank() == 0:
        print(f"loss of the last step: {loss:.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
