"""All families, and the halves: rules are calibrated on one, figures reported on the other."""

from collections.abc import Sequence

from gradwatch.zoo.families import (
    autoencoder,
    cnn,
    embedding,
    lora,
    mlp_healthy,
    mlp_loop,
    mlp_scale,
    recurrent,
    residual,
    transformer,
)
from gradwatch.zoo.training import Family

FAMILIES: tuple[Family, ...] = (
    *mlp_scale.FAMILIES,
    *mlp_loop.FAMILIES,
    *mlp_healthy.FAMILIES,
    *cnn.FAMILIES,
    *residual.FAMILIES,
    *recurrent.FAMILIES,
    *transformer.FAMILIES,
    *autoencoder.FAMILIES,
    *embedding.FAMILIES,
    *lora.FAMILIES,
)


WIDER: tuple[Family, ...] = ()
"""Public recipes and published faults, made after the first families had been calibrated on."""

EVERY = FAMILIES + WIDER
OF = {"first": FAMILIES, "wider": WIDER, "all": EVERY}
"""The sets that can be asked for by name."""


def half(name: str, families: Sequence[Family] = FAMILIES) -> tuple[Family, ...]:
    """Every other sick family and every other healthy one, in the order of the list."""
    if name == "all":
        return tuple(families)
    wanted = {"calibrate": 0, "report": 1}[name]
    chosen: list[Family] = []
    for is_sick in (True, False):
        chosen.extend([f for f in families if f.sick is is_sick][wanted::2])
    return tuple(chosen)


def long(families: Sequence[Family] = WIDER) -> tuple[Family, ...]:
    """The third that is also run for 5,000 steps: every third family in the order of the list."""
    return tuple(families[::3])
