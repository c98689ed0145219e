"""The work cut into tasks: a function of the checkpoint alone, so that every machine cuts alike."""

from collections.abc import Iterator
from dataclasses import dataclass

from gradwatch.checkpoints.access import (
    Access,
    Reading,
    changed,
    checksum_fits,
    mapped,
    unchanged,
)
from gradwatch.checkpoints.index import Checksum, FileId, Index
from gradwatch.checkpoints.limits import ALONE_BYTES, TASK_BYTES
from gradwatch.checkpoints.measuring import Item, Part, measure_item
from gradwatch.checkpoints.spectrum import Spectrum, spectrum_of
from gradwatch.errors import GradwatchError


@dataclass(frozen=True, slots=True)
class SpectrumTask:
    """One whole matrix whose singular values are wanted."""

    item: Item

    @property
    def bytes(self) -> int:
        return self.item.bytes

    @property
    def files(self) -> frozenset[FileId]:
        return frozenset((self.item.file,))


@dataclass(frozen=True, slots=True)
class Task:
    """Some items of measuring and some checksums, for one call of a worker."""

    items: tuple[Item, ...] = ()
    checksums: tuple[tuple[FileId, Checksum], ...] = ()

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def files(self) -> frozenset[FileId]:
        return frozenset((*(i.file for i in self.items), *(f for f, _ in self.checksums)))


def cut(index: Index, *, full: bool, marked: bool) -> Iterator[Task]:
    """Checksums first, then the tensors in order."""
    yield from _checksum_tasks(index)
    items: list[Item] = []
    size = 0
    for item in _items(index, full, marked):
        if items and size + item.bytes > TASK_BYTES:
            yield Task(tuple(items))
            items, size = [], 0
        items.append(item)
        size += item.bytes + 4096  # a tiny tensor costs about as much as a page
    if items:
        yield Task(tuple(items))


def _items(index: Index, full: bool, marked: bool) -> Iterator[Item]:
    for number, tensor in enumerate(index.tensors):
        for piece in tensor.pieces:
            line_bytes = max(1, piece.line * tensor.element.size)
            step = piece.lines if piece.packed else max(1, TASK_BYTES // line_bytes)
            for first in range(0, piece.lines, max(step, 1)):
                yield Item(
                    number,
                    index.files[piece.file],
                    tensor.element,
                    tensor.shape,
                    piece,
                    first,
                    min(first + step, piece.lines),
                    full,
                    marked,
                )


def _checksum_tasks(index: Index) -> Iterator[Task]:
    group: list[tuple[FileId, Checksum]] = []
    size = 0
    for checksum in index.checksums:
        group.append((index.files[checksum.file], checksum))
        size += checksum.length
        if size > TASK_BYTES:
            yield Task((), tuple(group))
            group, size = [], 0
    if group:
        yield Task((), tuple(group))


def do_alone(task: Task) -> list[Part]:
    """In the calling process: with `pread`."""
    return _do(task, Reading())


def do_in_worker(task: Task) -> list[Part]:
    """In a worker process: with the file mapped."""
    return _do(task, mapped())


def cut_spectra(index: Index) -> Iterator[SpectrumTask]:
    """One task for every floating matrix that lies in one piece."""
    for number, tensor in enumerate(index.tensors):
        if len(tensor.shape) >= 2 and tensor.element.floating and len(tensor.pieces) == 1:
            (piece,) = tensor.pieces
            file = index.files[piece.file]
            yield SpectrumTask(
                Item(number, file, tensor.element, tensor.shape, piece, 0, piece.lines, True)
            )


def spectrum_alone(task: SpectrumTask) -> tuple[int, Spectrum | None]:
    return task.item.tensor, spectrum_of(task.item, Reading())


def spectrum_in_worker(task: SpectrumTask) -> tuple[int, Spectrum | None]:
    return task.item.tensor, spectrum_of(task.item, mapped())


def _fitting(item: Item, access: Access) -> Access:
    """A large view that is not in row order can only be gathered from a mapped file."""
    held = item.piece.extent * item.element.size
    return mapped() if not item.piece.contiguous and held > ALONE_BYTES else access


def _do(task: Task, access: Access) -> list[Part]:
    for file, checksum in task.checksums:
        if not checksum_fits(file, checksum):
            raise (
                GradwatchError(
                    f"{file.path} is damaged: its member {checksum.name[:80]!r} does not have the "
                    "checksum that was saved with it."
                )
                if unchanged(file)
                else changed(file)
            )
    found = [measure_item(item, _fitting(item, access)) for item in task.items]
    for file in task.files:
        if not unchanged(file):
            raise changed(file)
    return found
