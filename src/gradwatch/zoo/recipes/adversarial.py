"""Generative adversarial networks: two networks, two losses, neither of which needs to fall."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from gradwatch.zoo.models import mlp
from gradwatch.zoo.recipes.odd import (
    Feed,
    Mixture,
    Sampler,
    adam,
    copied,
    energy_distance,
    fixed,
    looped,
)
from gradwatch.zoo.training import Draw, Training, Turn

LATENT = 8
Game = tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]
"""The discriminator's loss of its scores for real and made data, and the generator's."""

CLASSIC: Game = (
    lambda real, made: softplus(-real).mean() + softplus(made).mean(),
    lambda made: softplus(-made).mean(),
)
MINIMAX: Game = (CLASSIC[0], lambda made: -softplus(made).mean())
"""As in the first paper: the generator's gradient goes with its success."""
HINGE: Game = (
    lambda real, made: relu(1 - real).mean() + relu(1 + made).mean(),
    lambda made: -made.mean(),
)
SQUARES: Game = (
    lambda real, made: ((real - 1) ** 2).mean() + (made**2).mean(),
    lambda made: ((made - 1) ** 2).mean(),
)
WASSERSTEIN: Game = (lambda real, made: made.mean() - real.mean(), lambda made: -made.mean())


def spots(size: int, random: torch.Generator) -> Tensor:
    """Pictures of 8 x 8 with one bright spot, between -1 and 1."""
    places = 2 + 3 * torch.rand(size, 2, generator=random)
    rows = torch.arange(8.0)
    across, down = (torch.exp(-((rows - places[:, i : i + 1]) ** 2) / 3) for i in (0, 1))
    return 2 * (across[:, None, :, None] * down[:, None, None, :]) - 1


def _pictures(width: int) -> tuple[nn.Sequential, nn.Sequential]:
    """The networks of DCGAN, two layers deep."""
    generator = nn.Sequential(
        nn.Linear(LATENT, 16 * width), nn.Unflatten(1, (width, 4, 4)),
        nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, width, 3, 1, 1),
        nn.BatchNorm2d(width), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16 * width, 1),
    )  # fmt: skip
    return generator, discriminator


def gan(
    draw: Draw, *, game: Game = CLASSIC, pictures: bool = False, spectral: bool = False,
    eager: float = 1.0, lazy: float = 1.0, rounds: int = 1, clip: float = 0.0,
    penalty: float = 0.0, sign: float = 1.0, scale: float = 1.0,
) -> Training:  # fmt: skip
    """A generator against a discriminator, on clouds of points or on small pictures.

    `eager` and `lazy` multiply the discriminator's and the generator's learning rate. As is usual,
    what counts in the end is a moving average of the generator.
    """
    real: Sampler = spots if pictures else Mixture(draw, 1.5, 0.5).sample
    width = draw.pick((24, 32, 48))
    if pictures:
        generator, discriminator = _pictures(width // 2)
    else:
        generator = mlp([LATENT, width, width, 2])
        discriminator = mlp([2, width, width, 1], lambda: nn.LeakyReLU(0.2))
    if spectral:
        for layer in (discriminator[0], discriminator[2]):
            nn.utils.parametrizations.spectral_norm(layer)
    slow = copy.deepcopy(generator).requires_grad_(False)
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator, "average": slow})
    batch, feed = draw.pick((32, 64)), Feed()

    def made() -> Tensor:
        out: Tensor = generator(feed(torch.randn(batch, LATENT)))
        return out

    def d_loss() -> Tensor:
        false = made().detach()
        true = feed(scale * real(batch, draw.data))
        loss = game[0](discriminator(true), discriminator(false))
        return loss + penalty * _slope(discriminator, true, false) if penalty else loss

    def g_loss() -> Tensor:
        return sign * game[1](discriminator(made()))

    def after(step: int) -> None:
        copied(generator, slow, 0.05)
        for parameter in discriminator.parameters() if clip else ():
            parameter.data.clamp_(-clip, clip)

    after(0)
    rate = draw.rate(1.4e-3, 2.4e-3)
    judge = adam(rate * eager * (0.3 if pictures else 3.0), discriminator, betas=(0.5, 0.999))
    maker = adam(rate * lazy * (0.5 if pictures else 1.0), generator, betas=(0.5, 0.999))
    truth, noise = scale * real(256, fixed()), torch.randn(256, LATENT, generator=fixed())
    turns = [Turn("d_loss", d_loss, judge)] * rounds + [Turn("g_loss", g_loss, maker)]
    return looped(
        draw, model, turns, 240, lambda: energy_distance(slow(noise), truth), after=after, feed=feed
    )


def _slope(discriminator: nn.Module, true: Tensor, false: Tensor) -> Tensor:
    """How far the discriminator's slope between true and made data is from one."""
    share = torch.rand(len(true), *[1] * (true.dim() - 1))
    between = (share * true + (1 - share) * false).requires_grad_()
    (slope,) = torch.autograd.grad(discriminator(between).sum(), between, create_graph=True)
    return torch.square(slope.flatten(1).norm(dim=1) - 1).mean()
