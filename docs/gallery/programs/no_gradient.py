import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.ModuleDict({"encoder": nn.Linear(20, 64), "head": nn.Linear(64, 5)})
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="no-gradient") as watcher:
    for _ in range(150):
        x = torch.randn(64, 20)
        hidden = model["encoder"](x).relu().detach()  # fix: hidden = model["encoder"](x).relu()
        loss = nn.functional.cross_entropy(model["head"](hidden), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
