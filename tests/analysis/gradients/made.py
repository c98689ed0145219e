"""Runs made by hand that have one trouble each, and others near them that do not."""

import math
from collections.abc import Sequence

import numpy as np
from tests.making import make_run

from gradwatch.run import Run

STEPS = 60


def noise(seed: int, size: int = STEPS, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * np.random.default_rng(seed).normal(size=size))


def among_healthy(sick: Sequence[float], others: int = 5) -> Run:
    """One layer with these norms in the middle of healthy ones."""
    norms = {f"ok{i}": noise(i, len(sick)) for i in range(others)}
    names = list(norms)
    order = [*names[: others // 2], "sick", *names[others // 2 :]]
    return Run.from_norms({name: norms.get(name, sick) for name in order})


def non_finite() -> Run:
    return among_healthy([1.0] * 50 + [math.nan] * 10)


def dead() -> Run:
    return among_healthy([0.0] * STEPS)


def exploding() -> Run:
    return among_healthy(np.logspace(0, 5, STEPS).tolist())


def vanishing() -> Run:
    return among_healthy((1e-6 * noise(3)).tolist())


def healthy() -> Run:
    return among_healthy(noise(11).tolist())


def deep(sick: int = 5, layers: int = 8) -> Run:
    """The first `sick` layers of a chain get next to nothing."""
    return Run.from_norms(
        {f"layer{i}": noise(i) * (1e-6 if i < sick else 1.0) for i in range(layers)}
    )


def blocks(sick: int = 2) -> Run:
    """Three blocks of three layers; in the second one `sick` layers get next to nothing."""
    names = [f"blocks.{b}.{part}" for b in range(3) for part in ("in", "mid", "out")]
    faint = names[3 : 3 + sick]
    return Run.from_norms(
        {name: noise(i) * (1e-6 if name in faint else 1.0) for i, name in enumerate(names)}
    )


def overfitting(rises: bool = True) -> Run:
    steps = np.arange(STEPS)
    validation = np.where(steps < 20, 2 - steps / 15, 0.7 + (steps - 20) / 20 * rises)
    scalars = {"loss": (2 * np.exp(-steps / 10)).tolist(), "val_loss": validation.tolist()}
    return Run.from_norms({f"ok{i}": noise(i) for i in range(4)}, scalars=scalars)


def below_eps(share: float = 0.9) -> Run:
    """Of every weight this share has second moments below Adam's eps; the loss stays."""
    names = [f"fc{i}.weight" for i in range(3)]
    table = np.column_stack([noise(i) for i in range(3)])
    series = {"grad_norm": table, "optim_eps_fraction": np.full((STEPS, 3), share)}
    return make_run(series, names=names, scalars={"loss": np.full(STEPS, 2.0)})
