import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(1000, 64)
y = x @ torch.randn(64, 4)
x[:, 7] /= 1000
# fix: x = x / x.std(0)
model = nn.Linear(64, 4, bias=False)
model.weight.data = torch.linalg.lstsq(x, y).solution.T
torch.save(model.state_dict(), "model.pt")
