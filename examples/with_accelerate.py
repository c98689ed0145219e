"""Accelerate under gradwatch: `watch` after `prepare`."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.integrations.accelerate import watch


def main() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    inputs = torch.randn(512, 20)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(dim=1)), batch_size=32)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader
    )
    watcher = watch(accelerator, model, optimizer, run="accelerate-example")
    for _ in range(5):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                watcher.log(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
    watcher.close()


if __name__ == "__main__":
    main()
