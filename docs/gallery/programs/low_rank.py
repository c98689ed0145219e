import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
model.append(nn.Linear(256, 1))
decay = 1.0  # fix: decay = 0.01
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
for _ in range(300):
    x = torch.randn(64, 20)
    loss = nn.functional.mse_loss(model(x), 3 * x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
