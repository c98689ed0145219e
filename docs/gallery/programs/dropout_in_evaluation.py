import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="dropout-in-evaluation") as watcher:
    for step, (x, new) in enumerate(torch.randn(150, 2, 64, 20)):
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
        if step % 10 == 9:
            # fix: model.eval()
            with torch.no_grad():
                watcher.log(val_loss=nn.functional.cross_entropy(model(new), new[:, :5].argmax(1)))
            # fix: model.train()
