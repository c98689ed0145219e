"""Gradient accumulation with mixed precision under gradwatch: a step is an optimizer step.

    python examples/accumulation_amp.py

Added for gradwatch: the line with `gradwatch.watch`, which is given the scaler, and the one with
`watcher.log`. Gradients are recorded raw: without the scale and before clipping, whose factor
stands beside them. A step that the scaler leaves out is marked.
"""

import torch
from torch import nn
from torch.nn import functional as F

import gradwatch

STEPS, PARTS, BATCH = 120, 4, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    model.extend([nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1)])
    model.extend([nn.Flatten(), nn.Linear(32, 2)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(DEVICE)

    with gradwatch.watch(model, optimizer, scaler=scaler) as watcher:
        for _ in range(STEPS):
            total = 0.0
            for _ in range(PARTS):
                y = torch.randint(2, (BATCH,), device=DEVICE)
                x = torch.randn(BATCH, 1, 16, 16, device=DEVICE)
                x[:, :, 6:10, 6:10] += 1.5 * y[:, None, None, None]  # a bright patch, or none
                with torch.amp.autocast(DEVICE, dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y) / PARTS
                scaler.scale(loss).backward()
                total += loss.detach()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            watcher.log(loss=total)
    print(f"loss of the last step: {total:.3f}, scale of the loss: {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
