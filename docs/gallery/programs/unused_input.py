import torch

import gradwatch


class Net(torch.nn.Sequential):
    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return super().forward(token)  # fix: return super().forward(token + place)


torch.manual_seed(0)
model = Net(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="unused-input") as watcher:
    for _ in range(150):
        x, place = torch.randn(2, 64, 20)
        loss = torch.nn.functional.cross_entropy(model(x, place), (x + place)[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
