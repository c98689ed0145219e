import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
data = torch.randn(120, 64, 20)
data[80, 7] = 999.0  # the sensor's code for "no value"
# fix: data = data.masked_fill(data == 999, 0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="gradient-spikes") as watcher:
    for x in data:
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
