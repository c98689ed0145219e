"""The table of every statistic: name, what it belongs to, how it is stored, what it means.

Columns on disk, rows of the recorder, the documentation page and titles of the views are all read
off this one table.
"""

from enum import IntEnum, StrEnum
from functools import cache
from typing import Self

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

    @property
    def has_value(self) -> bool:
        """Whether a number stands beside this state."""
        return bool(HAS_VALUE[self])


HAS_VALUE = np.zeros(256, bool)
"""`State.has_value` of every byte, for whole arrays of states: `HAS_VALUE[states]`."""
HAS_VALUE[[State.MEASURED, State.SAMPLED, State.PARTIAL, State.CLIPPED]] = True
HAS_VALUE.setflags(write=False)


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

    _value_: str
    kind: Kind
    cadence: Cadence

    def __new__(cls, name: str, kind: Kind = Kind.PARAMETER, cadence: Cadence = Cadence.K) -> Self:
        """The name is the member's value; what it is measured on and how often hang on it."""
        family = str.__new__(cls, name)
        family._value_, family.kind, family.cadence = name, kind, cadence
        return family

    GRAD = "grad", Kind.PARAMETER, Cadence.K
    WEIGHT = "weight", Kind.PARAMETER, Cadence.K16
    UPDATE = "update", Kind.PARAMETER, Cadence.K4
    OPTIM = "optim", Kind.PARAMETER, Cadence.K4
    ACT = "act", Kind.LAYER, Cadence.K16
    PROBE = "probe", Kind.LAYER, Cadence.STEP
    GROUP = "group", Kind.GROUP, Cadence.K


_COUNT, _ROWS, _BITS = ("<u8", "elements"), ("<u8", "rows"), ("<u8", "")
_SHARE, _SINGLE, _DOUBLE = ("<f4", "fraction"), ("<f4", ""), ("<f8", "")
"""numpy's code of the column on disk (counts and hashes are exact in 64 bits), and the unit."""


class Stat(StrEnum):
    """Every series a run can have. `Stat("grad_norm")` turns a user's word into a member.

    Each is one row of the catalogue: name, how it is stored, what it means. In a family they stand
    in the order of its columns; those that gradients and weights have in common in the order the
    kernel gives them.
    """

    _value_: str
    family: Family
    dtype: str
    unit: str
    meaning: str

    def __new__(cls, name: str, stored: tuple[str, str] = _DOUBLE, meaning: str = "") -> Self:
        """The name is the member's value; the rest of the row hangs on it as attributes.

        Every row gives them: the defaults let a type checker see that `Stat("lr")` finds a member.
        """
        stat = str.__new__(cls, name)
        stat._value_, stat.meaning = name, meaning
        stat.dtype, stat.unit = stored
        stat.family = Family.GROUP if name == "lr" else Family(name.partition("_")[0])
        return stat

    @property
    def kind(self) -> Kind:
        """What the statistic is measured on: parameters, layers or optimizer groups."""
        return self.family.kind

    GRAD_COUNT = "grad_count", _COUNT, "elements of the gradient, NaN and Inf included"
    GRAD_NORM = "grad_norm", _DOUBLE, "Euclidean norm of the finite elements of the gradient"
    GRAD_MEAN = "grad_mean", _DOUBLE, "mean of the finite elements of the gradient"
    GRAD_STD = "grad_std", _DOUBLE, "population standard deviation of the gradient"
    GRAD_SKEWNESS = "grad_skewness", _SINGLE, "skewness of the gradient"
    GRAD_KURTOSIS = "grad_kurtosis", _SINGLE, "excess kurtosis of the gradient: 0 for a Gaussian"
    GRAD_ABS_MEAN = "grad_abs_mean", _DOUBLE, "mean absolute value of the gradient"
    GRAD_ABS_MAX = "grad_abs_max", _DOUBLE, "largest absolute value of the gradient"
    GRAD_MIN = "grad_min", _DOUBLE, "smallest finite element of the gradient"
    GRAD_MAX = "grad_max", _DOUBLE, "largest finite element of the gradient"
    GRAD_ZERO_FRACTION = (
        "grad_zero_fraction",
        _SHARE,
        "share of elements of the gradient that are exactly zero",
    )
    GRAD_NAN = "grad_nan", _COUNT, "NaN elements of the gradient"
    GRAD_INF = "grad_inf", _COUNT, "infinite elements of the gradient"
    GRAD_ZERO_ROWS = "grad_zero_rows", _ROWS, "rows of the gradient (dim 0) that are all zero"
    GRAD_DEAD_ROWS = (
        "grad_dead_rows",
        _ROWS,
        "rows whose gradient was zero on every recorded step of the window (64 steps)",
    )
    GRAD_UNTOUCHED_ROWS = (
        "grad_untouched_rows",
        _ROWS,
        "rows whose gradient has been zero on every recorded step so far",
    )
    GRAD_COSINE = (
        "grad_cosine",
        _SINGLE,
        "cosine between this gradient and the one recorded before it, by a fixed sample of 1,024 "
        "elements",
    )

    WEIGHT_COUNT = "weight_count", _COUNT, "elements of the weight, NaN and Inf included"
    WEIGHT_NORM = "weight_norm", _DOUBLE, "Euclidean norm of the finite elements of the weight"
    WEIGHT_MEAN = "weight_mean", _DOUBLE, "mean of the finite elements of the weight"
    WEIGHT_STD = "weight_std", _DOUBLE, "population standard deviation of the weight"
    WEIGHT_SKEWNESS = "weight_skewness", _SINGLE, "skewness of the weight"
    WEIGHT_KURTOSIS = "weight_kurtosis", _SINGLE, "excess kurtosis of the weight: 0 for a Gaussian"
    WEIGHT_ABS_MEAN = "weight_abs_mean", _DOUBLE, "mean absolute value of the weight"
    WEIGHT_ABS_MAX = "weight_abs_max", _DOUBLE, "largest absolute value of the weight"
    WEIGHT_MIN = "weight_min", _DOUBLE, "smallest finite element of the weight"
    WEIGHT_MAX = "weight_max", _DOUBLE, "largest finite element of the weight"
    WEIGHT_ZERO_FRACTION = (
        "weight_zero_fraction",
        _SHARE,
        "share of elements of the weight that are exactly zero",
    )
    WEIGHT_NAN = "weight_nan", _COUNT, "NaN elements of the weight"
    WEIGHT_INF = "weight_inf", _COUNT, "infinite elements of the weight"
    WEIGHT_ZERO_ROWS = "weight_zero_rows", _ROWS, "rows of the weight (dim 0) that are all zero"
    WEIGHT_ROW_SPREAD = (
        "weight_row_spread",
        _SINGLE,
        "largest distance of up to 16 fixed rows from row 0, relative to the largest row norm; "
        "0 means all of them are equal",
    )
    WEIGHT_HASH = (
        "weight_hash",
        _BITS,
        "sum of mixed bit patterns: equal where and only where (but for chance) the bits are",
    )

    UPDATE_NORM = "update_norm", _DOUBLE, "norm of weight after minus weight before"
    UPDATE_RATIO = "update_ratio", _DOUBLE, "update norm divided by the weight's norm before"
    UPDATE_LOST_FRACTION = (
        "update_lost_fraction",
        _SHARE,
        "share of coordinates with a non-zero gradient whose weight did not change by a bit",
    )

    OPTIM_RATIO_RMS = (
        "optim_ratio_rms",
        _SINGLE,
        "RMS of g/(√v̂+ε) with the second moment the step used (Adam family)",
    )
    OPTIM_EPS_FRACTION = (
        "optim_eps_fraction",
        _SHARE,
        "share of coordinates with √v̂ < ε: there Adam is no longer adaptive",
    )

    ACT_COUNT = "act_count", _COUNT, "elements of the layer's output"
    ACT_MEAN = "act_mean", _DOUBLE, "mean of the layer's finite outputs"
    ACT_STD = "act_std", _DOUBLE, "population standard deviation of the outputs"
    ACT_ABS_MAX = "act_abs_max", _DOUBLE, "largest absolute output"
    ACT_ZERO_FRACTION = "act_zero_fraction", _SHARE, "share of outputs exactly zero"
    ACT_NONFINITE = "act_nonfinite", _COUNT, "NaN and infinite outputs"
    ACT_GATE_ZERO_FRACTION = (
        "act_gate_zero_fraction",
        _SHARE,
        "share of zeros after the ReLU that this layer feeds (module or function)",
    )
    ACT_FLAT_FRACTION = (
        "act_flat_fraction",
        _SHARE,
        "share of outputs in the flat part of the tanh or sigmoid that this layer feeds "
        "(|tanh| > 0.97, sigmoid outside 0.03 … 0.97)",
    )
    ACT_ENTROPY = (
        "act_entropy",
        _SHARE,
        "mean row entropy of the softmax or attention this layer feeds, divided by ln n",
    )

    PROBE_NONFINITE = (
        "probe_nonfinite",
        _COUNT,
        "non-finite elements among at most 4,096 of the layer's output (all after the first hit)",
    )
    PROBE_INPUT_NONFINITE = (
        "probe_input_nonfinite",
        _COUNT,
        "non-finite elements among at most 4,096 of the layer's first input",
    )
    PROBE_TRAINING = (
        "probe_training",
        _SINGLE,
        "1 while the layer is in training mode, 0 in evaluation mode",
    )

    LR = "lr", _DOUBLE, "learning rate of the parameter group"


@cache
def family_stats(family: Family) -> tuple[Stat, ...]:
    """The statistics of one family, in the order of their columns."""
    return tuple(stat for stat in Stat if stat.family is family)


@cache
def row_dtype(family: Family) -> np.dtype[np.void]:
    """The packed record of one subject on one step: the recorder fills it, the ring copies it."""
    return np.dtype([(str(stat), stat.dtype) for stat in family_stats(family)])
