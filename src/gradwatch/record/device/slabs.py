"""How tensors are laid into slabs: matrices [chunks, 1024] on which one operation serves them all.

A launch costs a device as much as some ten thousand elements, and most tensors of a network are
smaller than that: they are joined. A large one is read where it lies, but for its two ends. What is
found of the chunks is put together for each tensor by tables of indices, always in the same order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.device.transfer import sent_to
from gradwatch.record.tensors import rows_lie_whole

CHUNK = 1024
_ALONE = 0.75
"""Stretches that fill more of a slab are read where they lie; others are joined."""
_GROUPS = (256, 64)
"""So many numbers are added at once on the way from chunks to few or to many tensors."""


class Piece(NamedTuple):
    """A stretch of a tensor, `lead` empty places before it; `part` is the number of its first
    chunk."""

    tensor: int
    start: int
    stop: int
    lead: int
    part: int

    @property
    def chunks(self) -> int:
        """How many it takes, the last one filled up."""
        return -(-(self.lead + self.stop - self.start) // CHUNK)


class Slab(NamedTuple):
    """Pieces of one kind that lie one after another; `first` is the number of its first chunk."""

    kind: object
    pieces: tuple[Piece, ...]
    first: int
    chunks: int

    @property
    def has_gaps(self) -> bool:
        """Whether there are places in it that no tensor fills."""
        return any(piece.lead or (piece.stop - piece.start) % CHUNK for piece in self.pieces)

    def lay(self, tensors: Sequence[Tensor], filling: Tensor) -> Tensor:
        """[chunks, 1024]: a view where it can be; gaps hold what `filling` holds, 1024 times."""
        parts: list[Tensor] = []
        for piece in self.pieces:
            stretch = tensors[piece.tensor][piece.start : piece.stop]
            after = piece.chunks * CHUNK - piece.lead - stretch.shape[0]
            parts += [filling[: piece.lead]] * (piece.lead > 0)
            parts.append(stretch)
            parts += [filling[:after]] * (after > 0)
        if len({part.dtype for part in parts}) > 1:  # joined as they are they are copied singly
            parts = [part.to(filling.dtype) for part in parts]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(-1, CHUNK)


@dataclass(frozen=True)
class Layout:
    """Slabs of some tensors, and the tables that lead from chunks back to them.

    One chunk more than there are, and one tensor more, stand for nothing: tables point there where
    they are filled up.
    """

    slabs: tuple[Slab, ...]
    owners: Tensor
    """[chunk + 1]: the tensor."""
    parts: Tensor
    """[chunk + 1]: which of the tensor's chunks it is."""
    tables: tuple[Tensor, ...]
    group: int
    room: NDArray[np.int64]
    """Elements that each tensor takes, gaps included."""

    def sums(self, numbers: Tensor) -> Tensor:
        """[…, chunk + 1] → […, tensor + 1]; no order of additions is left to chance."""
        for table in self.tables:
            numbers = self._groups(numbers, table).sum(-1)
        return numbers

    def least(self, numbers: Tensor) -> Tensor:
        """[…, chunk + 1] → […, tensor + 1]: the smallest of each tensor."""
        for table in self.tables:
            numbers = self._groups(numbers, table).amin(-1)
        return numbers

    def of_owner(self, numbers: Tensor) -> Tensor:
        """[…, tensor + 1] → […, chunk + 1]: of each chunk what its tensor has."""
        return numbers.index_select(-1, self.owners)

    def _groups(self, numbers: Tensor, table: Tensor) -> Tensor:
        chosen = numbers.index_select(-1, table)
        return chosen.view(*numbers.shape[:-1], -1, self.group)


def lay_out(
    counts: Sequence[int],
    kinds: Sequence[object],
    leads: Sequence[int],
    most: int,
    device: torch.device,
) -> Layout:
    """Slabs of at most `most` elements, each of tensors of one kind."""
    most = max(most, CHUNK)
    pieces: dict[object, list[list[Piece]]] = {}
    for tensor, (count, kind, lead) in enumerate(zip(counts, kinds, leads, strict=True)):
        slabs = pieces.setdefault(kind, [[]])
        for piece in _pieces(tensor, count, lead, most):
            if piece.stop - piece.start > _ALONE * most:
                slabs.append([piece])
                continue
            rest: Piece | None = piece
            while rest is not None:  # what does not fit is cut, so that every slab is full
                room = most // CHUNK - sum(other.chunks for other in slabs[0])
                if room == 0:
                    slabs.append(slabs[0])
                    slabs[0] = []
                else:
                    fitting, rest = _cut(rest, room)
                    slabs[0].append(fitting)
    laid: list[Slab] = []
    first = 0
    for kind, slabs in pieces.items():
        for slab in slabs:
            if slab:
                laid.append(Slab(kind, tuple(slab), first, sum(piece.chunks for piece in slab)))
                first += laid[-1].chunks
    return _with_tables(laid, len(counts), device)


def slabs_of(count: int, most: int) -> float:
    """How many slabs of at most so many elements a tensor takes, or which part of one."""
    whole, rest = divmod(count, most)
    return whole + (1 if rest > _ALONE * most else rest / most)


def _cut(piece: Piece, chunks: int) -> tuple[Piece, Piece | None]:
    """At most so many chunks of a piece, and what is left of it."""
    if piece.chunks <= chunks:
        return piece, None
    middle = piece.start + chunks * CHUNK - piece.lead
    rest = Piece(piece.tensor, middle, piece.stop, 0, piece.part + chunks)
    return piece._replace(stop=middle), rest


def _pieces(tensor: int, count: int, lead: int, most: int) -> Iterator[Piece]:
    """A small tensor whole; of a large one its ends, and between them stretches of whole chunks."""
    if count <= _ALONE * most:
        yield Piece(tensor, 0, count, lead, 0)
        return
    start = CHUNK - lead if lead else 0
    if start:
        yield Piece(tensor, 0, start, lead, 0)
    whole = start + (count - start) // CHUNK * CHUNK
    step = most // CHUNK * CHUNK
    for begin in range(start, whole, step):
        yield Piece(tensor, begin, min(begin + step, whole), 0, (begin + lead) // CHUNK)
    if whole < count:
        yield Piece(tensor, whole, count, 0, (whole + lead) // CHUNK)


def _with_tables(slabs: Sequence[Slab], tensors: int, device: torch.device) -> Layout:
    runs = [piece for slab in slabs for piece in slab.pieces]
    sizes = np.array([piece.chunks for piece in runs], np.int64)
    total = int(sizes.sum())
    owners = np.repeat([piece.tensor for piece in runs], sizes)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    parts = np.arange(total) - begins + np.repeat([piece.part for piece in runs], sizes)
    order = np.lexsort((parts, owners))
    many = np.bincount(owners, minlength=tensors)
    room = many * CHUNK
    group = _GROUPS[tensors > 512]
    tables = []
    while True:
        groups = np.maximum(-(-many // group), 1)
        starts = np.concatenate([[0], np.cumsum(groups)])
        table = np.full((int(starts[-1]) + 1) * group, len(order), np.int64)  # the last is nothing
        rank = np.arange(len(order)) - np.repeat(np.cumsum(many) - many, many)
        table[np.repeat(starts[:-1] * group, many) + rank] = order
        tables.append(sent_to(device, table, torch.int32))
        if groups.max(initial=1) <= 1:
            break
        many, order = groups, np.arange(int(starts[-1]))
    return Layout(
        tuple(slabs),
        sent_to(device, np.append(owners, tensors), torch.int32),
        sent_to(device, np.append(parts, 0), torch.int32),
        tuple(tables),
        group,
        room,
    )


# -- what is laid, and what comes of it --------------------------------------------------------


def flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory where its rows lie whole in it, as the kernel reads."""
    tensor = tensor.detach()
    if rows_lie_whole(tuple(tensor.shape), tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return tensor.reshape(-1)


@lru_cache(maxsize=64)
def filling(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is put into the gaps of slabs."""
    return torch.full((CHUNK,), value, dtype=dtype, device=device)


def with_nothing(parts: Sequence[Tensor], kind: torch.dtype) -> Tensor:
    """[…, chunk + 1], of the slabs' […, chunk]; the last is zero."""
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1:  # joined as they are they would be copied one by one
        parts = [part.to(kind) for part in parts]
    nothing = torch.zeros((*parts[0].shape[:-1], 1), dtype=parts[0].dtype, device=parts[0].device)
    return torch.cat([*parts, nothing], dim=-1).to(kind)
