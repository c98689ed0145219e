"""The table of every statistic: name, what it belongs to, how it is stored, what it means.

Columns on disk, rows of the recorder, the documentation page and titles of the views are all read
off this one table.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache

import numpy as np


class State(IntEnum):
    """NaN in a series only says "no finite value"; the state says why."""

    MEASURED = 0
    NOT_SAMPLED = 1
    NO_GRADIENT = 2
    SKIPPED_STEP = 3
    UNSUPPORTED = 4
    SAMPLED = 5  # measured on a fixed sample of the coordinates
    PARTIAL = 6  # not all shards of this step were there
    CLIPPED = 7  # measured after a clipping that cannot be undone
    DAMAGED = 8  # was recorded, but the file no longer holds it

    @property
    def has_value(self) -> bool:
        """Whether a number stands beside this state."""
        return bool(HAS_VALUE[self])


HAS_VALUE = np.zeros(256, bool)
"""`State.has_value` of every byte, for whole arrays of states: `HAS_VALUE[states]`."""
HAS_VALUE[[State.MEASURED, State.SAMPLED, State.PARTIAL, State.CLIPPED]] = True
HAS_VALUE.setflags(write=False)


SKETCH_WIDTH = 32


class Kind(StrEnum):
    """What a series can belong to."""

    PARAMETER = "parameter"
    LAYER = "layer"
    GROUP = "group"


class Cadence(StrEnum):
    """How often a family is recorded; `k` is stretched by the budget, in powers of two."""

    STEP = "every step"
    K = "every k steps"
    K4 = "every 4k steps"
    K16 = "every 16k steps"


class Family(StrEnum):
    """Statistics that are measured together and share a cadence and a row on disk."""

    GRAD = "grad"
    WEIGHT = "weight"
    UPDATE = "update"
    OPTIM = "optim"
    ACT = "act"
    PROBE = "probe"
    GROUP = "group"

    @property
    def kind(self) -> Kind:
        """What the family is measured on: parameters, layers or optimizer groups."""
        return _FAMILY_KIND[self]

    @property
    def cadence(self) -> Cadence:
        """How often the family is recorded."""
        return _FAMILY_CADENCE[self]


_FAMILY_KIND = {
    Family.GRAD: Kind.PARAMETER,
    Family.WEIGHT: Kind.PARAMETER,
    Family.UPDATE: Kind.PARAMETER,
    Family.OPTIM: Kind.PARAMETER,
    Family.ACT: Kind.LAYER,
    Family.PROBE: Kind.LAYER,
    Family.GROUP: Kind.GROUP,
}
_FAMILY_CADENCE = {
    Family.GRAD: Cadence.K,
    Family.WEIGHT: Cadence.K16,
    Family.UPDATE: Cadence.K4,
    Family.OPTIM: Cadence.K4,
    Family.ACT: Cadence.K16,
    Family.PROBE: Cadence.STEP,
    Family.GROUP: Cadence.K,
}


class Stat(StrEnum):
    """Every series a run can have. `Stat("grad_norm")` turns a user's word into a member."""

    GRAD_COUNT = "grad_count"
    GRAD_NORM = "grad_norm"
    GRAD_MEAN = "grad_mean"
    GRAD_STD = "grad_std"
    GRAD_SKEWNESS = "grad_skewness"
    GRAD_KURTOSIS = "grad_kurtosis"
    GRAD_ABS_MEAN = "grad_abs_mean"
    GRAD_ABS_MAX = "grad_abs_max"
    GRAD_MIN = "grad_min"
    GRAD_MAX = "grad_max"
    GRAD_ZERO_FRACTION = "grad_zero_fraction"
    GRAD_NAN = "grad_nan"
    GRAD_INF = "grad_inf"
    GRAD_ZERO_ROWS = "grad_zero_rows"
    GRAD_DEAD_ROWS = "grad_dead_rows"
    GRAD_UNTOUCHED_ROWS = "grad_untouched_rows"
    GRAD_COSINE = "grad_cosine"
    GRAD_SKETCH = "grad_sketch"

    WEIGHT_COUNT = "weight_count"
    WEIGHT_NORM = "weight_norm"
    WEIGHT_MEAN = "weight_mean"
    WEIGHT_STD = "weight_std"
    WEIGHT_SKEWNESS = "weight_skewness"
    WEIGHT_KURTOSIS = "weight_kurtosis"
    WEIGHT_ABS_MEAN = "weight_abs_mean"
    WEIGHT_ABS_MAX = "weight_abs_max"
    WEIGHT_MIN = "weight_min"
    WEIGHT_MAX = "weight_max"
    WEIGHT_ZERO_FRACTION = "weight_zero_fraction"
    WEIGHT_NAN = "weight_nan"
    WEIGHT_INF = "weight_inf"
    WEIGHT_ZERO_ROWS = "weight_zero_rows"
    WEIGHT_ROW_SPREAD = "weight_row_spread"
    WEIGHT_HASH = "weight_hash"

    UPDATE_NORM = "update_norm"
    UPDATE_RATIO = "update_ratio"
    UPDATE_LOST_FRACTION = "update_lost_fraction"

    OPTIM_RATIO_RMS = "optim_ratio_rms"
    OPTIM_EPS_FRACTION = "optim_eps_fraction"

    ACT_COUNT = "act_count"
    ACT_MEAN = "act_mean"
    ACT_STD = "act_std"
    ACT_ABS_MAX = "act_abs_max"
    ACT_ZERO_FRACTION = "act_zero_fraction"
    ACT_NONFINITE = "act_nonfinite"
    ACT_GATE_ZERO_FRACTION = "act_gate_zero_fraction"
    ACT_FLAT_FRACTION = "act_flat_fraction"
    ACT_ENTROPY = "act_entropy"

    PROBE_NONFINITE = "probe_nonfinite"
    PROBE_INPUT_NONFINITE = "probe_input_nonfinite"
    PROBE_TRAINING = "probe_training"

    LR = "lr"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the catalogue."""

    stat: Stat
    family: Family
    dtype: str
    """numpy's code of the column on disk; counts and hashes are exact in 64 bits."""
    unit: str
    meaning: str
    width: int = 1

    @property
    def kind(self) -> Kind:
        """What the statistic is measured on: parameters, layers or optimizer groups."""
        return self.family.kind


_F, _D, _U = "<f4", "<f8", "<u8"


def _tensor_entries(family: Family, what: str) -> tuple[Entry, ...]:
    """The statistics gradients and weights have in common, in the order the kernel gives them."""
    p = family.value
    rows = (
        ("count", _U, "elements", f"elements of the {what}, NaN and Inf included"),
        ("norm", _D, "", f"Euclidean norm of the finite elements of the {what}"),
        ("mean", _D, "", f"mean of the finite elements of the {what}"),
        ("std", _D, "", f"population standard deviation of the {what}"),
        ("skewness", _F, "", f"skewness of the {what}"),
        ("kurtosis", _F, "", f"excess kurtosis of the {what}: 0 for a Gaussian"),
        ("abs_mean", _D, "", f"mean absolute value of the {what}"),
        ("abs_max", _D, "", f"largest absolute value of the {what}"),
        ("min", _D, "", f"smallest finite element of the {what}"),
        ("max", _D, "", f"largest finite element of the {what}"),
        ("zero_fraction", _F, "fraction", f"share of elements of the {what} that are exactly zero"),
        ("nan", _U, "elements", f"NaN elements of the {what}"),
        ("inf", _U, "elements", f"infinite elements of the {what}"),
        ("zero_rows", _U, "rows", f"rows of the {what} (dim 0) that are all zero"),
    )
    return tuple(
        Entry(Stat(f"{p}_{name}"), family, dtype, unit, meaning)
        for name, dtype, unit, meaning in rows
    )


ENTRIES: tuple[Entry, ...] = (
    *_tensor_entries(Family.GRAD, "gradient"),
    Entry(
        Stat.GRAD_DEAD_ROWS,
        Family.GRAD,
        _U,
        "rows",
        "rows whose gradient was zero on every recorded step of the window (64 steps)",
    ),
    Entry(
        Stat.GRAD_UNTOUCHED_ROWS,
        Family.GRAD,
        _U,
        "rows",
        "rows whose gradient has been zero on every recorded step so far",
    ),
    Entry(
        Stat.GRAD_COSINE,
        Family.GRAD,
        _F,
        "",
        "cosine between this gradient's sketch and the one recorded before it",
    ),
    Entry(
        Stat.GRAD_SKETCH,
        Family.GRAD,
        _F,
        "",
        "32 signed sums of the gradient (of more than 65,536 elements one in eight): "
        "inner products between sketches estimate those between gradients",
        SKETCH_WIDTH,
    ),
    *_tensor_entries(Family.WEIGHT, "weight"),
    Entry(
        Stat.WEIGHT_ROW_SPREAD,
        Family.WEIGHT,
        _F,
        "",
        "largest distance of up to 16 fixed rows from row 0, relative to the largest row norm; "
        "0 means all of them are equal",
    ),
    Entry(
        Stat.WEIGHT_HASH,
        Family.WEIGHT,
        _U,
        "",
        "sum of mixed bit patterns: equal where and only where (but for chance) the bits are",
    ),
    Entry(Stat.UPDATE_NORM, Family.UPDATE, _D, "", "norm of weight after minus weight before"),
    Entry(
        Stat.UPDATE_RATIO, Family.UPDATE, _D, "", "update norm divided by the weight's norm before"
    ),
    Entry(
        Stat.UPDATE_LOST_FRACTION,
        Family.UPDATE,
        _F,
        "fraction",
        "share of coordinates with a non-zero gradient whose weight did not change by a bit",
    ),
    Entry(
        Stat.OPTIM_RATIO_RMS,
        Family.OPTIM,
        _F,
        "",
        "RMS of g/(√v̂+ε) with the second moment the step used (Adam family)",
    ),
    Entry(
        Stat.OPTIM_EPS_FRACTION,
        Family.OPTIM,
        _F,
        "fraction",
        "share of coordinates with √v̂ < ε: there Adam is no longer adaptive",
    ),
    Entry(Stat.ACT_COUNT, Family.ACT, _U, "elements", "elements of the layer's output"),
    Entry(Stat.ACT_MEAN, Family.ACT, _D, "", "mean of the layer's finite outputs"),
    Entry(Stat.ACT_STD, Family.ACT, _D, "", "population standard deviation of the outputs"),
    Entry(Stat.ACT_ABS_MAX, Family.ACT, _D, "", "largest absolute output"),
    Entry(Stat.ACT_ZERO_FRACTION, Family.ACT, _F, "fraction", "share of outputs exactly zero"),
    Entry(Stat.ACT_NONFINITE, Family.ACT, _U, "elements", "NaN and infinite outputs"),
    Entry(
        Stat.ACT_GATE_ZERO_FRACTION,
        Family.ACT,
        _F,
        "fraction",
        "share of zeros after the ReLU that this layer feeds (module or function)",
    ),
    Entry(
        Stat.ACT_FLAT_FRACTION,
        Family.ACT,
        _F,
        "fraction",
        "share of outputs in the flat part of the tanh or sigmoid that this layer feeds "
        "(|tanh| > 0.97, sigmoid outside 0.03 … 0.97)",
    ),
    Entry(
        Stat.ACT_ENTROPY,
        Family.ACT,
        _F,
        "fraction",
        "mean row entropy of the softmax or attention this layer feeds, divided by ln n",
    ),
    Entry(
        Stat.PROBE_NONFINITE,
        Family.PROBE,
        _U,
        "elements",
        "non-finite elements among at most 4,096 of the layer's output (all after the first hit)",
    ),
    Entry(
        Stat.PROBE_INPUT_NONFINITE,
        Family.PROBE,
        _U,
        "elements",
        "non-finite elements among at most 4,096 of the layer's first input",
    ),
    Entry(
        Stat.PROBE_TRAINING,
        Family.PROBE,
        _F,
        "",
        "1 while the layer is in training mode, 0 in evaluation mode",
    ),
    Entry(Stat.LR, Family.GROUP, _D, "", "learning rate of the parameter group"),
)

_BY_STAT = {item.stat: item for item in ENTRIES}


def entry(stat: Stat) -> Entry:
    """The catalogue's row of one statistic."""
    return _BY_STAT[stat]


@cache
def family_stats(family: Family) -> tuple[Entry, ...]:
    """The statistics of one family, in the order of their columns."""
    return tuple(item for item in ENTRIES if item.family is family)


@cache
def row_dtype(family: Family) -> np.dtype[np.void]:
    """The packed record of one subject on one step: the recorder fills it, the ring copies it."""
    fields: list[tuple[str, str] | tuple[str, str, int]] = [
        (str(item.stat), item.dtype)
        if item.width == 1
        else (str(item.stat), item.dtype, item.width)
        for item in family_stats(family)
    ]
    return np.dtype(fields)
