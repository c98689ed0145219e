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
    wider_adversarial,
    wider_data,
    wider_generative,
    wider_model,
    wider_optimizer,
    wider_reinforcement,
    wider_representation,
)
from gradwatch.zoo.training import Length, ZooFamily

FAMILIES: tuple[ZooFamily, ...] = (
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


WIDER: tuple[ZooFamily, ...] = (
    *wider_optimizer.FAMILIES,
    *wider_model.FAMILIES,
    *wider_data.FAMILIES,
    *wider_adversarial.FAMILIES,
    *wider_reinforcement.FAMILIES,
    *wider_generative.FAMILIES,
    *wider_representation.FAMILIES,
)
"""Public recipes and published faults, made after the first families had been calibrated on."""

EVERY = FAMILIES + WIDER
OF = {"first": FAMILIES, "wider": WIDER, "all": EVERY}
"""The sets that can be asked for by name."""


def half(name: str, families: Sequence[ZooFamily] = FAMILIES) -> tuple[ZooFamily, ...]:
    """Every other sick family and every other healthy one, in the order of the list."""
    if name == "all":
        return tuple(families)
    wanted = {"calibrate": 0, "report": 1}[name]
    chosen: list[ZooFamily] = []
    for is_sick in (True, False):
        chosen.extend([f for f in families if f.sick is is_sick][wanted::2])
    return tuple(chosen)


def chosen(of: str, half_of_it: str, length: Length) -> tuple[ZooFamily, ...]:
    """A half of a set; for long trainings every third family of the set, in its order."""
    families = OF[of]
    long = set(families[::3])
    return tuple(f for f in half(half_of_it, families) if length is not Length.LONG or f in long)
