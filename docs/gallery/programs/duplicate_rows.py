import torch
from torch import nn

torch.manual_seed(0)
small = nn.Linear(20, 32)
wide = nn.Linear(20, 64)
with torch.no_grad():
    wide.weight.copy_(small.weight.repeat(2, 1))
    # fix: wide.weight.add_(0.01 * torch.randn(64, 20))
model = nn.Sequential(wide, nn.ReLU(), nn.Linear(64, 5))
torch.save(model.state_dict(), "model.pt")
