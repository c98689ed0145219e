"""Two networks against each other, and agents: faults and habits of public programs."""

from functools import partial

from gradwatch.zoo.changes import set_field
from gradwatch.zoo.recipes.adversarial import HINGE, MINIMAX, SQUARES, WASSERSTEIN, gan
from gradwatch.zoo.training import family

dcgan = partial(gan, pictures=True)
wgan = partial(gan, game=WASSERSTEIN, rounds=3)
fit = partial(family, sick=False)

FAMILIES = (
    family("gan", "overpowering-discriminator", "The discriminator learns 3000 times as fast.",
           partial(dcgan, game=MINIMAX, eager=10, lazy=0.003)),
    family("gan", "generator-left-behind", "The generator hardly learns beside its judge.",
           partial(dcgan, eager=10, lazy=0.003)),
    family("gan", "silent-generator", "Nobody calls the step of the generator's optimizer.",
           gan, set_field(silent=frozenset({1})), culprits=["generator.*"]),
    family("gan", "silent-discriminator", "Nobody calls the step of the discriminator's optimizer.",
           gan, set_field(silent=frozenset({0})), culprits=["discriminator.*"]),
    family("gan", "flipped-generator", "The generator helps to find it out.",
           partial(gan, sign=-1)),
    family("gan", "unscaled-pixels", "Pictures as they come, in the hundreds.",
           partial(dcgan, scale=255), culprits=["discriminator.0"]),
    family("gan", "unbounded-critic", "A Wasserstein critic that nothing holds.", wgan),
    fit("gan", "minimax", "The generator's loss of the first paper; it rises, below zero.",
        partial(gan, game=MINIMAX)),
    fit("gan", "classic", "Both losses hover while the samples become good.", gan),
    fit("gan", "hinge", "The generator's loss is below and above zero.", partial(gan, game=HINGE)),
    fit("gan", "least-squares", "Squared scores.", partial(gan, game=SQUARES)),
    fit("gan", "spectral", "A discriminator with spectral norms.", partial(gan, spectral=True)),
    fit("gan", "dcgan", "Convolutions and batch norms.", dcgan),
    fit("gan", "wasserstein-clipped", "Three critic steps to one, weights clamped after each.",
        partial(wgan, clip=0.1)),
    fit("gan", "wasserstein-penalty", "A penalty on the critic's slope; no last bias is moved.",
        partial(wgan, penalty=10)),
)  # fmt: skip
