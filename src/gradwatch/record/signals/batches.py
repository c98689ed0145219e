"""Which samples went into the last steps: `log(batch=ids)`, to find a bad batch again."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

KEPT = 64
_MOST = 1024


class Batches:
    """The ids of the last 64 steps, each with at most 1,024 of them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, list[int | str]]] = deque(maxlen=KEPT)
        self._bad: tuple[int, list[int | str]] | None = None

    def keep(self, step: int, ids: Any) -> None:
        """Remember what the step was fed with; a step of several batches has all of theirs."""
        samples = plain_ids(ids)
        if self._kept and self._kept[-1][0] == step:
            samples = [*self._kept.pop()[1], *samples][:_MOST]
        self._kept.append((step, samples))

    def mark(self, step: int) -> dict[str, Any]:
        """The loss of this step is not finite: what to note, the first time it happens."""
        if self._bad is not None or not self._kept:
            return {}
        self._bad = next((batch for batch in self._kept if batch[0] == step), self._kept[-1])
        return self.info()

    def info(self) -> dict[str, Any]:
        """For `run.info`: `batches` ([step, ids] of the last steps) and the first `bad_batch`."""
        if not self._kept:
            return {}
        info: dict[str, Any] = {"batches": [[step, ids] for step, ids in self._kept]}
        if self._bad is not None:
            info["bad_batch"] = {"step": self._bad[0], "ids": self._bad[1]}
        return info


def plain_ids(ids: Any) -> list[int | str]:
    """Whole numbers and words out of a tensor, an array, a list or a single id."""
    if isinstance(ids, torch.Tensor):
        if not ids.is_cpu:
            return []  # reading it would wait for the device
        ids = ids.detach().numpy()
    if isinstance(ids, np.ndarray):
        ids = ids.reshape(-1)[:_MOST].tolist()
    if isinstance(ids, (str, int)) or not isinstance(ids, Iterable):
        ids = [ids]
    return [_plain(sample) for sample in list(ids)[:_MOST]]


def _plain(sample: Any) -> int | str:
    if isinstance(sample, (int, np.integer)):
        return int(sample)
    if isinstance(sample, torch.Tensor) and sample.is_cpu and sample.numel() == 1:
        return _plain(sample.detach().numpy().reshape(()).item())
    if isinstance(sample, float) and sample.is_integer():
        return int(sample)
    return str(sample)[:200]
