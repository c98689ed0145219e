import torch
import torch.distributed as dist
from torch import nn

import gradwatch


def train(rank: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore("ranks", 2), rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(20, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.watch(model, optimizer, run="replica-divergence") as watcher:
        torch.manual_seed(rank)
        for _ in range(60):
            x = torch.randn(64, 20)
            out = model.module(x)  # fix: out = model(x)
            loss = nn.functional.cross_entropy(out, x[:, :5].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log(loss=loss)


torch.multiprocessing.start_processes(train, nprocs=2, start_method="fork")
