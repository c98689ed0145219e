"""What really happened in a loop, in float64, told by the loop itself at the right places."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Values = dict[str, NDArray[np.float64] | None]


@dataclass
class Step:
    """The truth about one step."""

    raw: Values = field(default_factory=dict)
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)
    factor: float | None = 1.0
    """What the gradient was multiplied by before the optimizer got it; None: not by one number."""
    skipped: bool = False
    backwards: int | None = 1
    stale: bool | None = None


class Truth:
    """The loop calls `raw` after backward, `before` and `after` around the step, then `made`."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.steps: dict[int, Step] = {}
        self.number = 0
        self.now = Step()

    def raw(self, *only: str, scale: float = 1.0) -> None:
        self.now.raw |= {
            name: None if p.grad is None else _double(p.grad) / scale
            for name, p in self.model.named_parameters()
            if not only or name.startswith(only)
        }

    def before(self, *only: str) -> None:
        self.now.before |= self._weights(only)

    def after(self, *only: str) -> None:
        self.now.after |= self._weights(only)

    def made(self, **facts: object) -> None:
        """The step is over."""
        for name, value in facts.items():
            assert hasattr(self.now, name)
            setattr(self.now, name, value)
        self.steps[self.number] = self.now
        self.number += 1
        self.now = Step()

    def _weights(self, only: tuple[str, ...]) -> Values:
        return {
            name: _double(p)
            for name, p in self.model.named_parameters()
            if p.device.type != "meta" and (not only or name.startswith(only))
        }


def _double(tensor: Tensor) -> NDArray[np.float64]:
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    values: NDArray[np.float64] = tensor.to(torch.float64).numpy().copy()
    return values
