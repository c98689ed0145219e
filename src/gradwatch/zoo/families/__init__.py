"""All families, and the halves: rules are calibrated on one, figures reported on the other."""

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
from gradwatch.zoo.training import Recipe

FAMILIES: tuple[Recipe, ...] = (
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


def half(name: str) -> tuple[Recipe, ...]:
    """Every other sick family and every other healthy one, in the order of the list."""
    if name == "all":
        return FAMILIES
    wanted = {"calibrate": 0, "report": 1}[name]
    chosen: list[Recipe] = []
    for is_sick in (True, False):
        chosen.extend([f for f in FAMILIES if f.sick is is_sick][wanted::2])
    return tuple(chosen)
