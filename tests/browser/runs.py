"""Runs that the browser tests show, and what they read back from a page."""

import re
from collections.abc import Callable

import numpy as np
from tests.making import make_run
from tests.views.samples import HOSTILE, Told, network

from gradwatch.run import Run


def nothing_finite() -> Run:
    nan = np.full((12, 4), np.nan)
    return make_run(
        {"grad_norm": nan, "grad_nan": np.full((12, 4), 5.0), "update_ratio": nan},
        names=["a.weight", "a.bias", "b.weight", "b.bias"],
        scalars={"loss": [float("nan")] * 12},
        states={"grad_norm": np.zeros((12, 4)), "update_ratio": np.zeros((12, 4))},
    )


def many_layers() -> Run:
    names = [f"blocks.{i // 10}.part{i % 10}.weight" for i in range(5000)]
    return make_run(
        {"grad_norm": np.abs(np.random.default_rng(0).normal(1, 0.1, (6, 5000)))},
        names=names,
        scalars={"loss": [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]},
    )


def weights_only() -> Run:
    return Run.from_arrays(weights={f"l{i}.weight": [np.full((4, 4), i + 1.0)] for i in range(3)})


RUNS: dict[str, Callable[[], tuple[Run, Told | None]]] = {
    "healthy": lambda: (network(6, 60), Told()),
    "sick": lambda: (network(6, 60, fading=True), None),
    "broken": lambda: (network(6, 60, broken_from=30), None),
    "nothing finite": lambda: (nothing_finite(), Told(healthy=False)),
    "one step": lambda: (network(3, 1), Told()),
    "weights only": lambda: (weights_only(), Told(healthy=None)),
    "nothing": lambda: (make_run({}, names=["a.weight"]), None),
    "many layers": lambda: (many_layers(), Told()),
    "hostile names": lambda: (network(names=HOSTILE, steps=20), None),
}


def value_in(text: str) -> float:
    """The number at the end of a tooltip."""
    found = re.search(r"≈ (\S+)$", text)
    assert found, text
    return float(found[1])
