"""The statistics in torch operations, for memory we cannot read: no value is waited for.

Everything stays on the device as float64 (float32 on MPS, which has nothing wider).
"""

import torch
from torch import Tensor

MOMENTS = (
    "zeros",
    "nan",
    "pos_inf",
    "neg_inf",
    "zero_rows",
    "mean",
    "std",
    "skewness",
    "kurtosis",
    "norm",
    "abs_mean",
    "abs_max",
    "min",
    "max",
)
"""What `moments` gives, in this order; `count` is known without looking."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def wide(device: torch.device) -> torch.dtype:
    """The type results are kept in."""
    return torch.float32 if device.type == "mps" else torch.float64


def cleaned(tensor: Tensor) -> Tensor:
    """In at least float32, with zeros where an element is not finite."""
    plain = tensor if tensor.itemsize >= 4 else tensor.float()
    return plain.nan_to_num(0.0, 0.0, 0.0)


def moments(tensor: Tensor) -> Tensor:
    """One number for each of MOMENTS, of a tensor with at least one element."""
    plain = tensor.detach()
    kind = wide(plain.device)
    x = plain.reshape(-1)
    x = x if x.dtype is torch.float64 else x.float()
    finite = x.isfinite()
    n = finite.sum().to(kind)
    # In units of the largest element, so that no power of it leaves the range of the type.
    top = x.abs().where(finite, 0).amax()
    unit = top.where(top > 0, 1)
    y = x.where(finite, 0) / unit
    mean = y.sum(dtype=kind) / n
    away = (y - mean).where(finite, 0)
    square = away * away
    variance = square.sum(dtype=kind) / n
    spread = variance.sqrt()
    third = (square * away).sum(dtype=kind) / n
    fourth = (square * square).sum(dtype=kind) / n
    infinite = x.new_tensor(float("inf"))
    found = [
        (x == 0).sum(),
        x.isnan().sum(),
        (x == infinite).sum(),
        (x == -infinite).sum(),
        _zero_rows(plain),
        mean * unit,
        spread * unit,
        third / spread**3,
        fourth / variance**2 - 3,
        (y * y).sum(dtype=kind).sqrt() * unit,
        y.abs().sum(dtype=kind) / n * unit,
        top,
        x.where(finite, infinite).amin(),
        x.where(finite, -infinite).amax(),
    ]
    stacked = torch.stack([number.to(kind) for number in found])
    # Without a finite element only the counts mean anything.
    undefined = torch.arange(len(found), device=x.device) >= MOMENTS.index("mean")
    return stacked.masked_fill(undefined & (n == 0), float("nan"))


def adam(gradient: Tensor, second: Tensor, step: Tensor, beta: float, epsilon: float) -> Tensor:
    """RMS of g/(√v̂+ε) and the share of coordinates with √v̂ < ε."""
    kind = wide(gradient.device)
    correction = 1 - torch.pow(torch.full_like(step, beta, dtype=kind), step.to(kind))
    root = (second.detach().to(kind) / correction).sqrt()
    ratio = gradient.detach().to(kind) / (root + epsilon)
    return torch.stack([ratio.square().mean().sqrt(), (root < epsilon).to(kind).mean()])


def bits_sum(tensor: Tensor) -> Tensor:
    """A 64-bit hash of the bits as four 16-bit numbers, which any float holds exactly."""
    plain = tensor.detach()
    words = plain.reshape(-1).view(_BITS[plain.itemsize]).to(torch.int64)
    odd = torch.arange(words.numel(), device=words.device) * 2 + 1
    total = (words * odd).sum()
    pieces = [(total >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
    return torch.stack(pieces).to(wide(plain.device))


def _zero_rows(tensor: Tensor) -> Tensor:
    if tensor.dim() < 2:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    return (tensor.reshape(tensor.shape[0], -1) != 0).any(1).logical_not().sum()
