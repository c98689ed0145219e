import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 5))
for layer in model[::2]:
    nn.init.normal_(layer.weight)  # fix: nn.init.kaiming_normal_(layer.weight)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with gradwatch.watch(model, optimizer, run="bad-init") as watcher:
    for _ in range(150):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
