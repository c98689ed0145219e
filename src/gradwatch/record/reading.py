"""Numbers out of tensors without a scalar read."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwatch.record.placement import local


def number(value: Any) -> float:
    """A Python number, numpy scalar or one-element CPU tensor as a float; NaN for anything else.

    On an accelerator `item()` would wait for it, so nothing is read from there.
    """
    try:
        if not isinstance(value, Tensor):
            return float(value)
        return float(local(value).item()) if value.is_cpu else float("nan")
    except (TypeError, ValueError, RuntimeError):  # no number, or more than one
        return float("nan")


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A CPU tensor as a numpy array (a copy in float32 where numpy has no such type)."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array
