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
        found = plain_ids(ids)
        if self._kept and self._kept[-1][0] == step:
            found = [*self._kept.pop()[1], *found][:_MOST]
        self._kept.append((step, found))

    def mark(self, step: int) -> dict[str, Any]:
        """The loss of this step is not finite: what to note, the first time it happens."""
        if self._bad is not None or not self._kept:
            return {}
        self._bad = next((one for one in self._kept if one[0] == step), self._kept[-1])
        return self.info()

    def info(self) -> dict[str, Any]:
        """For `run.info`: `batches` ([step, ids] of the last steps) and the first `bad_batch`."""
        if not self._kept:
            return {}
        known: dict[str, Any] = {"batches": [[step, ids] for step, ids in self._kept]}
        if self._bad is not None:
            known["bad_batch"] = {"step": self._bad[0], "ids": self._bad[1]}
        return known


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
    return [_plain(one) for one in list(ids)[:_MOST]]


def _plain(one: Any) -> int | str:
    if isinstance(one, (int, np.integer)):
        return int(one)
    if isinstance(one, torch.Tensor) and one.is_cpu and one.numel() == 1:
        return _plain(one.detach().numpy().reshape(()).item())
    if isinstance(one, float) and one.is_integer():
        return int(one)
    return str(one)[:200]
