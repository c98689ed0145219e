"""Fine-tuning with LoRA under gradwatch: the base is frozen, small matrices beside it are trained.

    python examples/lora.py

Added for gradwatch: the line with `gradwatch.watch` and the one with `watcher.log`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradwatch

STEPS, BATCH, RANK = 300, 128, 4


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first the base is as it was

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def batch(turn: float) -> tuple[Tensor, Tensor]:
    """Points, and in which of eight sectors they lie; `turn` is where the first begins."""
    x = torch.randn(BATCH, 2)
    return x, ((torch.atan2(x[:, 1], x[:, 0]) + turn) * 8 / (2 * torch.pi)).floor().long() % 8


def main() -> None:
    torch.manual_seed(0)
    first, middle, last = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 8)
    base = nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), last)
    optimizer = torch.optim.AdamW(base.parameters(), lr=3e-3)
    for _ in range(STEPS):  # stands for the model that you would download
        x, y = batch(turn=0.0)
        optimizer.zero_grad()
        F.cross_entropy(base(x), y).backward()
        optimizer.step()

    model = nn.Sequential(LoRA(first), nn.ReLU(), LoRA(middle), nn.ReLU(), LoRA(last))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    with gradwatch.watch(model, optimizer) as watcher:
        for _ in range(STEPS):
            x, y = batch(turn=0.4)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log(loss)
    print(f"right after fine-tuning: {(model(x).argmax(1) == y).float().mean():.0%}")


if __name__ == "__main__":
    main()
