import torch
from torch import nn

torch.manual_seed(0)
model = nn.ModuleDict({"skip": nn.Linear(20, 5), "branch": nn.Linear(20, 5)})
model["norm"] = nn.LayerNorm(5)
nn.init.zeros_(model["norm"].weight)
trained = model["skip"]  # fix: trained = model
optimizer = torch.optim.Adam(trained.parameters(), lr=3e-3)
for _ in range(100):
    x = torch.randn(64, 20)
    out = model["skip"](x) + model["norm"](model["branch"](x))
    loss = nn.functional.cross_entropy(out, x[:, :5].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
