import torch
from torch import nn

torch.manual_seed(0)
vocabulary = 500  # fix: vocabulary = 300
model = nn.ModuleDict({"embedding": nn.Embedding(vocabulary, 16), "head": nn.Linear(16, 5)})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=1.0)
for _ in range(300):
    tokens = torch.randint(300, (256,))
    loss = nn.functional.cross_entropy(model["head"](model["embedding"](tokens)), tokens % 5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
