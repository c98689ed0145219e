"""How statistics are shown: their titles, scales and digits, and which value of a bucket."""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.stats import Kind, Stat
from gradwatch.text import nearest, plain

GRAD_RMS = "grad_rms"
"""The one derived series: gradient norm / √count, so that tensors of all sizes compare."""


class BucketValue(StrEnum):
    """Which of a bucket's values a cell shows; magnitudes show the highest, so no spike is lost."""

    HIGHEST = "highest"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Shown:
    """One statistic as the views show it."""

    name: str
    title: str
    unit: str
    log: bool
    value: BucketValue
    stat: Stat
    """The recorded series it is read from."""
    kind: Kind


_TITLES = {
    Stat.GRAD_NORM: "gradient norm",
    Stat.GRAD_ABS_MAX: "largest gradient",
    Stat.GRAD_ZERO_FRACTION: "gradient exactly zero",
    Stat.GRAD_COSINE: "cosine with the gradient before",
    Stat.GRAD_KURTOSIS: "gradient kurtosis (excess)",
    Stat.WEIGHT_NORM: "weight norm",
    Stat.WEIGHT_STD: "weight std",
    Stat.UPDATE_RATIO: "update / weight",
    Stat.UPDATE_NORM: "update norm",
    Stat.UPDATE_LOST_FRACTION: "updates lost to rounding",
    Stat.OPTIM_RATIO_RMS: "Adam step size g/√v (RMS)",
    Stat.OPTIM_EPS_FRACTION: "Adam: √v below ε",
    Stat.ACT_STD: "activation std",
    Stat.ACT_MEAN: "activation mean",
    Stat.ACT_ABS_MAX: "largest activation",
    Stat.ACT_ZERO_FRACTION: "activations exactly zero",
    Stat.ACT_GATE_ZERO_FRACTION: "zeros after the ReLU",
    Stat.ACT_FLAT_FRACTION: "saturated activations",
    Stat.ACT_ENTROPY: "attention entropy",
    Stat.ACT_NONFINITE: "non-finite outputs",
    Stat.PROBE_NONFINITE: "non-finite outputs (probed)",
    Stat.PROBE_INPUT_NONFINITE: "non-finite inputs (probed)",
    Stat.GRAD_NAN: "NaN in the gradient",
    Stat.GRAD_INF: "Inf in the gradient",
    Stat.WEIGHT_NAN: "NaN in the weight",
    Stat.WEIGHT_INF: "Inf in the weight",
    Stat.LR: "learning rate",
}

HEAT_CHOICE: tuple[str, ...] = (
    GRAD_RMS,
    Stat.UPDATE_RATIO,
    Stat.ACT_STD,
    Stat.ACT_GATE_ZERO_FRACTION,
    Stat.ACT_FLAT_FRACTION,
    Stat.ACT_ENTROPY,
    Stat.WEIGHT_NORM,
    Stat.GRAD_ZERO_FRACTION,
    Stat.GRAD_ABS_MAX,
    Stat.GRAD_COSINE,
    Stat.OPTIM_RATIO_RMS,
    Stat.UPDATE_LOST_FRACTION,
    Stat.GRAD_KURTOSIS,
)
"""What the page offers, most telling first: where space runs out, the last ones are left away."""

_SIGNED = frozenset({"mean", "min", "max", "skewness", "kurtosis", "cosine"})


def shown(name: str) -> Shown:
    """A user's word (`grad_rms` or any statistic) as something that can be shown."""
    if name == GRAD_RMS:
        return Shown(
            GRAD_RMS,
            "gradient RMS",
            "",
            log=True,
            value=BucketValue.HIGHEST,
            stat=Stat.GRAD_NORM,
            kind=Kind.PARAMETER,
        )
    try:
        stat = Stat(name)
    except ValueError:
        raise GradwatchError(
            f"There is no statistic named {plain(name)!r}. Did you mean "
            f"{nearest(name, (GRAD_RMS, *Stat))}? `gradwatch show RUN --signals` lists those of a "
            "run.",
            Exit.USAGE,
        ) from None
    fraction = stat.unit == "fraction"
    signed = stat.rpartition("_")[2] in _SIGNED and not stat.endswith("abs_max")
    title = _TITLES.get(stat, stat.replace("_", " ").replace("grad ", "gradient ", 1))
    return Shown(
        name=str(stat),
        title=title,
        unit=stat.unit,
        log=not (fraction or signed),
        value=BucketValue.LAST if signed else BucketValue.HIGHEST,
        stat=stat,
        kind=stat.kind,
    )


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number as it is drawn: six digits; None where there is no finite one."""
    if value is None or not math.isfinite(value):
        return None
    drawn = float(f"{value:.{digits}g}")
    return drawn if math.isfinite(drawn) else float(value)  # the largest numbers round to infinity


def numbers(values: NDArray[np.float64]) -> list[float | None]:
    """`rounded`, of a whole array."""
    return [rounded(float(value)) for value in values]
