"""What makes a gradient raw again, on accelerators: needed there before the sentinel can say it."""

from collections.abc import Sequence
from math import frexp, isfinite

import torch
from torch import Tensor

from gradwatch.record.far.arithmetic import cleaned, wide
from gradwatch.record.verdict import TOLERANCE

_CLOSE = 1e-3


def restoring(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor | None:
    """By what the gradients must be multiplied to be what backward left; 1 where nothing fits.

    `pairs` are the sentinel's samples. As in `verdict.judge`, only that here all are one sample.
    """
    if not pairs:
        return None
    device = pairs[0][1].device
    kind = wide(device)
    near = [pair for pair in pairs if pair[1].device == device]
    was, now = (cleaned(torch.cat(side)).to(kind) for side in zip(*near, strict=True))
    tolerance = max(TOLERANCE, *(2 * torch.finfo(pair[1].dtype).eps for pair in near))
    factor = (was * now).sum() / (was * was).sum()
    rest = torch.linalg.vector_norm(now - factor * was)
    fits = rest <= tolerance * torch.linalg.vector_norm(now)
    fits = fits & (factor > 0) & (was != now).any()
    return torch.where(fits, 1 / factor, 1.0)


def shift_to_raw(multiplier: float, applied: float) -> int | None:
    """By how many powers of two bins are moved that were taken after `applied`.

    `multiplier` is what the sentinel says would have been right. None where they differ by more
    than powers of two, which no moving of bins can mend.
    """
    rest = multiplier / applied if applied else 0.0
    if not isfinite(rest) or rest <= 0:
        return None
    mantissa, exponent = frexp(rest)
    if abs(mantissa / 0.5 - 1) < _CLOSE:
        return exponent - 1
    return exponent if abs(mantissa - 1) < _CLOSE else None
