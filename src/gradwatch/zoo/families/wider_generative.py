"""Variational autoencoders, diffusion, flows, energies, equations."""

from functools import partial

from gradwatch.zoo.changes import rate_times
from gradwatch.zoo.recipes.generative import (
    diffusion,
    energy,
    equation,
    flow,
    vae,
)
from gradwatch.zoo.training import family

fit = partial(family, sick=False)

FAMILIES = (
    family("vae", "divergence-times-1000", "The code is pressed into the prior.",
           partial(vae, weight=1000)),
    family("vae", "detached-code", "The decoder's error never reaches the encoder.",
           partial(vae, cut=True), culprits=["mean", "spread", "encoder.0"]),
    family("vae", "huge-variance", "Variances overflow before the first step.",
           partial(vae, offset=200), culprits=["spread"]),
    family("diffusion", "unscaled", "Data in the hundreds.", partial(diffusion, scale=255),
           culprits=["net.enter"]),
    family("diffusion", "no-noise", "A schedule that adds next to no noise.",
           partial(diffusion, noise=1e-6)),
    family("diffusion", "too-fast", "300 times the learning rate.", diffusion, rate_times(300)),
    family("flow", "wrong-sign", "The gain of room has the wrong sign: no bound below.",
           partial(flow, sign=-1)),
    family("flow", "too-fast", "A hundred times the learning rate.", flow, rate_times(100)),
    family("energy", "flipped", "Data get the high energies.", partial(energy, sign=-1)),
    family("energy", "untamed", "Energies that nothing holds, and too large a rate.",
           partial(energy, tame=0), rate_times(100)),
    family("pinn", "unscaled", "Places in thousands.", partial(equation, scale=1000),
           culprits=["0"]),
    fit("vae", "plain", "A loss of two parts.", vae),
    fit("vae", "warm-up", "The divergence's weight grows, and the loss with it.",
        partial(vae, warm_up=100)),
    fit("vae", "beta", "A heavier divergence that leaves the code alive.", partial(vae, weight=3)),
    fit("vae", "half-precision", "Autocast to bfloat16.", partial(vae, autocast=True)),
    fit("diffusion", "plain", "A loss that stays far above zero.", diffusion),
    fit("diffusion", "averaged", "A moving average beside the network.",
        partial(diffusion, average=True)),
    fit("diffusion", "half-precision", "Autocast to bfloat16.", partial(diffusion, autocast=True)),
    fit("flow", "plain", "A loss that falls below zero.", flow),
    fit("energy", "plain", "A loss that hovers about zero.", energy),
    fit("pinn", "plain", "The gradient of the output is in the loss.", equation),
)  # fmt: skip
