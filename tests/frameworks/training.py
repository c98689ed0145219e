"""One small regression, trained by plain torch: the truth the frameworks are compared with."""

import torch
from torch import nn

STEPS, BATCH, CLIP = 12, 8, 0.05


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS * BATCH, 6, generator=generator)
    return inputs, (inputs @ torch.randn(6, 2, generator=generator)).tanh()


def model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def truth(clip: float | None, *, accumulate: int = 1, lr: float = 0.05) -> dict[str, list[float]]:
    """Raw gradient norm of each parameter, the clip factor and the loss of every optimizer step."""
    net, (inputs, targets) = model(), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    kept: dict[str, list[float]] = {"clip": [], "loss": []}
    for step in range(STEPS // accumulate):
        optimizer.zero_grad()
        losses = []
        for micro in range(accumulate):
            at = slice((step * accumulate + micro) * BATCH, (step * accumulate + micro + 1) * BATCH)
            loss = nn.functional.mse_loss(net(inputs[at]), targets[at])
            (loss / accumulate).backward()
            losses.append(loss.item())
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            kept.setdefault(name, []).append(parameter.grad.double().norm().item())
        if clip is not None:
            total = nn.utils.clip_grad_norm_(net.parameters(), clip).item()
            kept["clip"].append(min(1.0, clip / (total + 1e-6)))
        kept["loss"].append(sum(losses) / accumulate)
        optimizer.step()
    return kept
