import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
rate = 1.0  # fix: rate = 0.01
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(100):
    x = torch.randn(64, 20)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
