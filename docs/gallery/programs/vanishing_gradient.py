import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
act = nn.Sigmoid  # fix: act = nn.Tanh
layers = [nn.Sequential(nn.Linear(20, 20), act()) for _ in range(8)]
model = nn.Sequential(*layers, nn.Linear(20, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with gradwatch.watch(model, optimizer, run="vanishing-gradient") as watcher:
    for _ in range(200):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
