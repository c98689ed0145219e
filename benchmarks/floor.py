"""The floor that what reads memory is compared with."""

import numpy as np
from numpy.typing import NDArray


def read(array: NDArray[np.generic]) -> None:
    """Read every byte of a contiguous array once: numpy finds the largest word at full speed."""
    array.reshape(-1).view(np.uint8).view(np.int32 if array.nbytes % 4 == 0 else np.uint8).max()
