"""What one optimizer steps: its tensors, and what we remember of them between steps."""

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.record.copies import Copies
from gradwatch.record.naming import Named
from gradwatch.record.placement import flat_offset, local
from gradwatch.record.row_memory import RowMemory
from gradwatch.record.sentinel import Sentinel
from gradwatch.run import Subject
from gradwatch.stats import SKETCH_WIDTH


@dataclass(frozen=True)
class Track:
    """One watched parameter."""

    named: Named
    subject: Subject
    id: int

    @property
    def tensor(self) -> Tensor | None:
        return self.named.ref()


class Ward:
    """The tracks of one optimizer (or of none), measured together in one call."""

    def __init__(self, optimizer: Optimizer | None, sentinel: Sentinel) -> None:
        self.ref = weakref.ref(optimizer) if optimizer is not None else None
        self.groups: list[int] = []
        """The run's numbers of the optimizer's parameter groups."""
        self.group_ids = np.zeros(0, np.uint32)
        self.sentinel = sentinel
        self.tracks: tuple[Track, ...] = ()
        self.remote = False
        """Some of it lives on an accelerator, where memory cannot be read by address."""
        self.copies = Copies()
        self.memory = RowMemory(())
        self.ids = np.zeros(0, np.uint32)
        self.seeds = np.zeros(0, np.uint64)
        self.offsets = np.zeros(0, np.int64)
        self.wholes = np.zeros(0, np.int64)
        self.last_sketch = np.zeros((0, SKETCH_WIDTH), np.float32)

    @property
    def optimizer(self) -> Optimizer | None:
        return self.ref() if self.ref is not None else None

    def hand_over(self, tracks: Sequence[Track]) -> None:
        """Take these tracks; what was remembered of the old ones is kept where nothing changed."""
        same = [t.id for t in tracks] == [t.id for t in self.tracks]
        self.tracks = tuple(tracks)
        self.remote = any(is_remote(track.tensor) for track in tracks)
        rows = [_rows(track.tensor) for track in tracks]
        if same and self.tracks and rows == list(self.memory.rows):
            return
        self.ids = np.array([track.id for track in tracks], np.uint32)
        self.seeds = np.array([_seed(track.subject.name) for track in tracks], np.uint64)
        self.offsets = np.array([flat_offset(t.subject.placement) for t in tracks], np.int64)
        self.wholes = np.array([track.subject.count for track in tracks], np.int64)
        self.memory = RowMemory(rows)
        self.last_sketch = np.full((len(tracks), SKETCH_WIDTH), np.nan, np.float32)

    def parameters(self) -> list[Tensor | None]:
        return [track.named.ref() for track in self.tracks]

    def gradients(self) -> list[Tensor | None]:
        return [None if (p := track.named.ref()) is None else p.grad for track in self.tracks]


def is_remote(value: object) -> bool:
    """Whether this is a tensor that lives on an accelerator."""
    return isinstance(value, Tensor) and value.device.type not in ("cpu", "meta")


def _rows(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    tensor = local(tensor)
    return tensor.shape[0] if tensor.dim() > 1 and tensor.numel() else 0


def _seed(name: str) -> int:
    """The same for a name in every process, so that the sketches of shards add up."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest())
