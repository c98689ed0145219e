import torch
from torch import nn

torch.manual_seed(0)
x = torch.rand(1000, 8)
price = 1e6 * x @ torch.rand(8, 1)
# fix: price = price / price.std()
model = nn.Linear(8, 1, bias=False)
model.weight.data = torch.linalg.lstsq(x, price).solution.T
torch.save(model.state_dict(), "model.pt")
