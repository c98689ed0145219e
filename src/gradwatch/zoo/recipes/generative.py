"""Densities and generators with one network: VAEs, diffusion, flows, energies, equations."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gradwatch.zoo.models import mlp
from gradwatch.zoo.recipes.odd import Feed, Mixture, copied, energy_distance, fixed, single
from gradwatch.zoo.tasks import manifold
from gradwatch.zoo.training import Draw, Training


def vae(
    draw: Draw, *, weight: float = 1.0, warm_up: int = 0, cut: bool = False,
    autocast: bool = False, offset: float = 0.0,
) -> Training:  # fmt: skip
    """A variational autoencoder; its loss is a sum over the features, as in torch's example.

    `weight` is that of the divergence from the prior; `offset` shifts the logarithmic variances.
    """
    task, width, codes = manifold(draw.data), draw.pick((32, 48, 64)), 3
    parts = {
        "encoder": nn.Sequential(nn.Linear(task.inputs, width), nn.ReLU()),
        "mean": nn.Linear(width, codes),
        "spread": (last := nn.Linear(width, codes)),
        "decoder": mlp([codes, width, task.inputs]),
    }
    model, feed, step = nn.ModuleDict(parts), Feed(), [0]
    nn.init.constant_(last.bias, offset)

    def loss() -> Tensor:
        points = feed(task.sample(64, draw.data)[0])
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = parts["encoder"](points)
            mean, spread = parts["mean"](hidden).float(), parts["spread"](hidden).float()
            code = mean + torch.randn(mean.shape) * torch.exp(spread / 2)
            again = parts["decoder"](code.detach() if cut else code).float()
        step[0] += 1
        share = min(1.0, step[0] / warm_up) if warm_up else 1.0
        prior = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
        return torch.add(torch.square(again - points).sum(1).mean() / 0.1, share * weight * prior)

    clean = task.sample(256, fixed())[0]

    def outcome() -> float:
        return float(mse_loss(parts["decoder"](parts["mean"](parts["encoder"](clean))), clean))

    return single(draw, model, loss, draw.rate(3e-3, 6e-3), 220, outcome, good=0.01, feed=feed)


class Denoiser(nn.Module):
    """Guesses the noise in a point from the point and the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Linear(8, width)
        self.enter = nn.Linear(2, width)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 2)

    def forward(self, points: Tensor, times: Tensor) -> Tensor:
        """The noise; times are between 0 and 1."""
        waves = times[:, None] * torch.tensor([1.0, 3.0, 9.0, 27.0])
        marks = torch.cat([waves.sin(), waves.cos()], 1)
        out: Tensor = self.head(self.body(self.enter(points) + self.time(marks)))
        return out


def diffusion(
    draw: Draw, *, scale: float = 1.0, noise: float = 1.0, average: bool = False,
    autocast: bool = False,
) -> Training:  # fmt: skip
    """Denoising diffusion on clouds of points; with `average` a moving average of it is kept.

    The floor is the error of the best denoiser there is, which a mixture's density gives.
    """
    mixture, feed = Mixture(draw), Feed()
    denoiser = Denoiser(draw.pick((64, 96)))
    slow = copy.deepcopy(denoiser).requires_grad_(False)
    model = nn.ModuleDict({"net": denoiser, **({"average": slow} if average else {})})
    usual = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 50), 0)
    used = torch.cumprod(1 - noise * torch.linspace(1e-3, 0.15, 50), 0)

    def error(
        points: Tensor, random: torch.Generator, net: Callable[..., Tensor], kept: Tensor
    ) -> Tensor:
        times = torch.randint(50, (len(points),), generator=random)
        clean, added = kept[times, None].sqrt(), torch.randn(points.shape, generator=random)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            guess = net(clean * points + (1 - kept[times, None]).sqrt() * added, times / 50)
        return mse_loss(guess.float(), added)

    def best(noisy: Tensor, times: Tensor) -> Tensor:
        """What the density says: the noise is the score times its size, turned round."""
        share = usual[(50 * times).round().long(), None]
        with torch.enable_grad():
            place = (noisy / share.sqrt() / scale).requires_grad_()
            wider = ((1 - share) / share).sqrt() / scale
            density = mixture.log_density(place, wider)
        (score,) = torch.autograd.grad(density.sum(), place)
        return -score * wider

    def loss() -> Tensor:
        return error(feed(scale * mixture.sample(64, draw.data)), draw.data, denoiser, used)

    clean = scale * mixture.sample(512, fixed())
    return single(
        draw, model, loss, draw.rate(3e-3, 6e-3), 300,
        lambda: float(error(clean, fixed(), denoiser, usual)),
        good=float(error(clean, fixed(), best, usual)), chance=1.0, feed=feed,
        after=(lambda _: copied(denoiser, slow, 0.05)) if average else None,
    )  # fmt: skip


class Coupling(nn.Module):
    """One layer of RealNVP: half of the numbers shift and stretch the other half."""

    def __init__(self, size: int, width: int, flip: bool) -> None:
        super().__init__()
        self.net = mlp([size // 2, width, size])
        self.flip = flip

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Where the points go, and the logarithm of how much room they gain."""
        fixed_half, other = points.chunk(2, 1)[:: -1 if self.flip else 1]
        stretch, shift = self.net(fixed_half).chunk(2, 1)
        stretch = torch.tanh(stretch) * 2
        pair = (fixed_half, other * stretch.exp() + shift)
        return torch.cat(pair[:: -1 if self.flip else 1], 1), stretch.sum(1)


def flow(draw: Draw, *, sign: float = 1.0) -> Training:
    """RealNVP on clouds of points; they are so tight that the loss falls below zero."""
    mixture, feed, width = Mixture(draw, radius=0.5, spread=0.05), Feed(), draw.pick((32, 48))
    layers = nn.ModuleList(Coupling(2, width, bool(i % 2)) for i in range(4))

    def surprise(points: Tensor, sign: float = 1.0) -> Tensor:
        gained = torch.zeros(len(points))
        for layer in layers:
            points, more = layer(points)
            gained = gained + more
        return (0.5 * (points**2).sum(1) + math.log(2 * math.pi) - sign * gained).mean()

    clean = mixture.sample(512, fixed())
    return single(
        draw, layers, lambda: surprise(feed(mixture.sample(64, draw.data)), sign),
        draw.rate(3e-3, 5e-3), 220, lambda: float(surprise(clean)),
        good=-float(mixture.log_density(clean).mean()), chance=math.nan, feed=feed,
    )  # fmt: skip


def energy(draw: Draw, *, tame: float = 0.1, sign: float = 1.0) -> Training:
    """An energy-based model: low energy for data, high for what Langevin steps make of noise.

    The loss hovers about zero. `tame` keeps the energies small.
    """
    mixture, feed, width = Mixture(draw, radius=1.6, spread=0.25), Feed(), draw.pick((48, 64))
    net = mlp([2, width, width, 1], nn.SiLU)

    def dream(points: Tensor, random: torch.Generator) -> Tensor:
        for _ in range(15):
            with torch.enable_grad():
                points = points.detach().requires_grad_()
                (slope,) = torch.autograd.grad(net(points).sum(), points)
            points = points - 0.15 * slope + 0.1 * torch.randn(points.shape, generator=random)
        return points.detach()

    def loss() -> Tensor:
        real = feed(mixture.sample(64, draw.data))
        made = dream(torch.randn(64, 2, generator=draw.data), draw.data)
        high, low = net(made), net(real)
        return torch.mean(sign * (low - high) + tame * (low**2 + high**2))

    truth = mixture.sample(256, fixed())

    def outcome() -> float:
        return energy_distance(dream(torch.randn(256, 2, generator=fixed()), fixed()), truth)

    return single(draw, net, loss, draw.rate(2e-3, 4e-3), 150, outcome, feed=feed)


def equation(draw: Draw, *, scale: float = 1.0) -> Training:
    """A physics-informed network: u' = cos(x) - u/2 with u(0) = 0, by gradients of the output.

    `scale` is the unit in which x is given to the network, between 0 and 3 of them.
    """
    feed, width = Feed(), draw.pick((24, 32, 48))
    net = mlp([1, width, width, 1], nn.Tanh)

    def loss() -> Tensor:
        places = feed(3 * scale * torch.rand(64, 1, generator=draw.data)).requires_grad_()
        values = net(places)
        (slope,) = torch.autograd.grad(values.sum(), places, create_graph=True)
        rest = slope * scale - torch.cos(places / scale) + values / 2
        return torch.square(rest).mean() + torch.square(net(torch.zeros(1, 1))).mean()

    places = torch.linspace(0, 3, 100)[:, None]
    truth = 0.8 * places.sin() + 0.4 * places.cos() - 0.4 * torch.exp(-places / 2)
    return single(
        draw, net, loss, draw.rate(3e-3, 8e-3), 250,
        lambda: float(mse_loss(net(scale * places), truth)), chance=math.nan, feed=feed,
    )  # fmt: skip
