"""Numbers out of tensors without a scalar read."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwatch.record.placement import local


def number(value: Any) -> float:
    """A Python number, numpy scalar or one-element CPU tensor as a float; NaN for anything else.

    `tensor.item()` is a scalar read, which on an accelerator waits for it; on the CPU we look at
    the memory through numpy instead, so that no path of ours ever asks for one.
    """
    try:
        if not isinstance(value, Tensor):
            return float(value)
        if not value.is_cpu:
            return float("nan")
        if type(value) is Tensor and value.dtype is torch.float32:
            return float(value.detach().numpy().item())
        return float(as_array(local(value)).item())
    except (TypeError, ValueError):  # no number, or more than one
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
