"""Accelerate under gradwatch: `watch` after `prepare`.

    python examples/with_accelerate.py

Added for gradwatch: the line with `watch(accelerator, …)` and the one with `watcher.log`. The run
closes when the process ends; here it is closed by hand.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.integrations.accelerate import watch


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    inputs = torch.randn(512, 20)
    data = TensorDataset(inputs, inputs[:, :3].argmax(dim=1))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=3e-3), loader
    )
    watcher = watch(accelerator, model, optimizer)
    for _ in range(10):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                watcher.log(loss)
                optimizer.step()
                optimizer.zero_grad()
    watcher.close()


if __name__ == "__main__":
    main()
