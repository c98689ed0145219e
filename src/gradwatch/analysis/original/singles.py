"""32-bit sums, one addition after the other: right for the original, wrong for large tensors."""

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]


def total(values: Singles) -> np.float32:
    """`accumulate` adds left to right, which `sum` does not; −0 when empty."""
    if not values.size:
        return np.float32(-0.0)
    result: np.float32 = np.add.accumulate(values, dtype=np.float32)[-1]
    return result


def divided(numerator: np.float32, denominator: np.float32) -> np.float32:
    """Never traps."""
    with np.errstate(all="ignore"):
        return np.float32(np.divide(numerator, denominator))


def norm(values: Singles) -> np.float32:
    """Euclidean norm; squares overflow above 1.8e19 and vanish below 1e-23."""
    flat = np.asarray(values, np.float32).ravel()
    return np.float32(np.sqrt(total(flat * flat)))


def moments(values: Singles) -> tuple[np.float32, np.float32]:
    """Mean and population std; NaN when empty."""
    count = np.float32(values.size)
    mean = divided(total(values), count)
    centred = values - mean
    return mean, np.float32(np.sqrt(divided(total(centred * centred), count)))
