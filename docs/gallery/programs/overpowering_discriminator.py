import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
softplus = nn.functional.softplus
model = nn.ModuleDict()
model["generator"] = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
model["discriminator"] = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(model["generator"].parameters(), lr=1e-4)
d_rate = 1e-2  # fix: d_rate = 1e-4
d_optimizer = torch.optim.Adam(model["discriminator"].parameters(), lr=d_rate)
with gradwatch.watch(model, d_optimizer, g_optimizer, run="overpowering-discriminator") as watcher:
    for _ in range(300):
        real, made = torch.randn(64, 2) + 3, model["generator"](torch.randn(64, 8))
        good, bad = model["discriminator"](real), model["discriminator"](made.detach())
        d_loss = softplus(-good).mean() + softplus(bad).mean()
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        g_loss = softplus(-model["discriminator"](made)).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        watcher.log(d_loss=d_loss, g_loss=g_loss)
