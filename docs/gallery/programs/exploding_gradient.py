import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.ModuleDict({"rnn": nn.RNN(4, 64), "head": nn.Linear(64, 1)})
nn.init.normal_(model["rnn"].weight_hh_l0, std=0.25)  # fix:
# fix: nn.init.orthogonal_(model["rnn"].weight_hh_l0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with gradwatch.watch(model, optimizer, run="exploding-gradient") as watcher:
    for _ in range(150):
        x = torch.randn(80, 32, 4)
        hidden, _ = model["rnn"](x)
        loss = nn.functional.mse_loss(model["head"](hidden[-1]), x[-3:, :, :1].mean(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
