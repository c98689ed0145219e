"""A GAN under gradwatch: two networks and two optimizers in one run.

    python examples/gan.py

Added for gradwatch: the line with `gradwatch.watch` and the one with `watcher.log`. The parameters
are named `G.0.weight`, `D.0.weight`, …, the losses `G.loss` and `D.loss`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradwatch

STEPS, BATCH, NOISE = 800, 128, 8


def real(count: int) -> Tensor:
    """Points on a circle of radius 1, a little blurred."""
    angle = 2 * math.pi * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(count, 2)


def network(inputs: int, outputs: int) -> nn.Sequential:
    body = [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*body, nn.Linear(64, outputs))


def main() -> None:
    torch.manual_seed(0)
    G, D = network(NOISE, 2), network(2, 1)
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))

    with gradwatch.watch({"G": G, "D": D}, opt_g, opt_d) as watcher:
        for _ in range(STEPS):
            fake = G(torch.randn(BATCH, NOISE))
            d_loss = F.softplus(-D(real(BATCH))).mean() + F.softplus(D(fake.detach())).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()

            g_loss = F.softplus(-D(fake)).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
            watcher.log({"G": {"loss": g_loss}, "D": {"loss": d_loss}})

    with torch.no_grad():
        radius = G(torch.randn(1000, NOISE)).norm(dim=1)
    print(f"distance of generated points from the centre: {radius.mean():.2f} ± {radius.std():.2f}")
    print(f"overhead: {watcher.overhead}")


if __name__ == "__main__":
    main()
