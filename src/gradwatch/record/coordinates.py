"""Fixed coordinates of a tensor, spread over it, without a random number."""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def fixed_coordinates(count: int, wanted: int, device: torch.device) -> Tensor:
    """At most `wanted` flat indices below `count`, the same every time, no two equal.

    One from each of `wanted` equal stretches, at a place in it that follows the golden ratio: a
    plain stride would fall into step with the rows of a matrix.
    """
    if count <= wanted:
        return torch.arange(count, device=device)
    stretch = count / wanted
    picked = [int((i + (i * 0.6180339887498949) % 1.0) * stretch) for i in range(wanted)]
    return torch.tensor(picked, dtype=torch.int64).to(device, non_blocking=True)
