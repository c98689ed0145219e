"""The floor that what reads memory is compared with."""

import numpy as np
from numpy.typing import NDArray

_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def read(array: NDArray[np.generic]) -> None:
    """Read every byte of a contiguous array once, and do next to nothing."""
    np.bitwise_or.reduce(array.reshape(-1).view(_WORDS[array.itemsize]))
