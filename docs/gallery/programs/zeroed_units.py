import torch
from torch import nn
from torch.nn.utils import prune

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(100):
    x = torch.randn(64, 20)
    loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
prune.ln_structured(model[0], "weight", amount=0.5, n=2, dim=0)  # fix:
# fix: prune.l1_unstructured(model[0], "weight", amount=0.5)
prune.remove(model[0], "weight")
torch.save(model.state_dict(), "model.pt")
