"""From the bytes of a file to blocks of elements, the same however they are read.

There are two ways to the bytes. The calling process reads them into memory of its own (`pread`).
Worker processes map the file, which copies nothing; if it shrinks meanwhile, the worker dies.
"""

import mmap
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints import limits
from gradwatch.checkpoints.elements import SIZES, Element, as_floats
from gradwatch.checkpoints.index import Checksum, FileId, Index, Shard, TensorEntry, row_major
from gradwatch.checkpoints.limits import MIB
from gradwatch.checkpoints.readers.files import identified, place, read_at
from gradwatch.errors import GradwatchError

Bytes = NDArray[np.uint8]
ReadBytes = Callable[[FileId, int, int], Bytes]
"""Bytes of a file at an offset, so many; the next call may overwrite what one call gave."""
Access = Callable[[], ReadBytes]
"""`reading` or `mapping`: makes a function that reads bytes; each has a buffer of its own."""
_OPEN = 32
"""Files that a thread keeps open, and mapped."""


def reading() -> ReadBytes:
    """`pread` into a buffer that belongs to the function returned: nothing a file does is fatal."""
    buffer = np.empty(0, np.uint8)

    def read(file: FileId, offset: int, length: int) -> Bytes:
        nonlocal buffer
        descriptor = _descriptor(file)
        if len(buffer) < length:
            buffer = np.empty(length, np.uint8)
        done = 0
        while done < length:
            target = buffer[done : min(done + 64 * MIB, length)]
            count = os.preadv(descriptor, [target.data], offset + done)
            if not count:
                raise changed(file)
            done += count
        return buffer[:length]

    return read


def mapping() -> ReadBytes:
    """The file mapped: no copy, but a file that shrinks kills the process. For workers only."""
    return _mapped_bytes


def _mapped_bytes(file: FileId, offset: int, length: int) -> Bytes:
    maps = _of_thread.maps
    if file not in maps:
        mapped = mmap.mmap(_descriptor(file), file.size, access=mmap.ACCESS_READ)
        maps[file] = np.frombuffer(mapped, np.uint8)
        if len(maps) > _OPEN:
            maps.popitem(last=False)
    maps.move_to_end(file)
    return maps[file][offset : offset + length]


# -- open files ------------------------------------------------------------------------------------


class _Descriptors(OrderedDict[FileId, int]):
    """The files last opened by one thread; closed with it."""

    def close(self, kept: int = 0) -> None:
        while len(self) > kept:
            os.close(self.popitem(last=False)[1])

    def __del__(self) -> None:
        self.close()


class _OfThread(threading.local):
    """What each thread has for itself: a cluster's workers may run several tasks at once."""

    def __init__(self) -> None:
        self.descriptors = _Descriptors()
        self.maps: OrderedDict[FileId, Bytes] = OrderedDict()


_of_thread = _OfThread()


def _descriptor(file: FileId) -> int:
    """An open descriptor of exactly this file; the last few stay open."""
    descriptors = _of_thread.descriptors
    if file not in descriptors:
        try:
            descriptor = os.open(place(file.path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise changed(file) from None
        # Between reading the header and now, another file may have taken the path.
        now = identified(descriptor, file.path)
        if (now.size, now.modified) != (file.size, file.modified):
            os.close(descriptor)
            raise changed(file)
        descriptors[file] = descriptor
        descriptors.close(kept=_OPEN)
    descriptors.move_to_end(file)
    return descriptors[file]


def close_all() -> None:
    """Close the descriptors that stayed open in this thread."""
    _of_thread.descriptors.close()


def changed(file: FileId) -> GradwatchError:
    """What to say about a file that is no longer what its header was read from."""
    return GradwatchError(
        f"{file.path} changed while reading. Wait until it is written, then try again."
    )


def unchanged(file: FileId) -> bool:
    """Whether the file on the disk is still the one whose header was read."""
    try:
        status = place(file.path).stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified)


def verify_checksum(file: FileId, checksum: Checksum) -> None:
    """Raise unless the bytes have the CRC-32 that the archive's directory gives."""
    descriptor, crc = _descriptor(file), 0
    for begin in range(0, checksum.length, 4 * MIB):
        length = min(4 * MIB, checksum.length - begin)
        crc = zlib.crc32(read_at(descriptor, checksum.offset + begin, length, file.path), crc)
    if crc != checksum.crc:
        if not unchanged(file):
            raise changed(file)
        raise GradwatchError(
            f"{file.path} is damaged: its member {checksum.name[:80]!r} does not have the "
            "checksum that was saved with it."
        )


# -- blocks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorBlock:
    """Some whole rows of a shard, or a part of one row, as flat contiguous elements in memory."""

    first_row: int
    rows: int
    first_column: int
    bits: NDArray[np.generic]
    element: Element

    @property
    def values(self) -> NDArray[np.floating]:
        """The elements as numbers numpy can compute with."""
        return as_floats(self.bits, self.element)


def blocks(read: ReadBytes, file: FileId, shard: Shard, element: Element) -> Iterator[TensorBlock]:
    """The whole shard, in order; a block holds at most `limits.BLOCK` elements."""
    if not shard.count:
        return
    cuts = list(_cuts(shard))
    if shard.packed:
        raws = _inflated(
            file, shard, [rows * columns * element.size for _, rows, _, columns in cuts]
        )
    elif shard.contiguous:
        raws = (
            read(
                file,
                shard.offset + (row * shard.row_size + column) * element.size,
                rows * columns * element.size,
            )
            for row, rows, column, columns in cuts
        )
    else:
        yield from _gathered(read, file, shard, element, cuts)
        return
    for (row, rows, column, _), raw in zip(cuts, raws, strict=True):
        yield TensorBlock(row, rows, column, typed(raw, element), element)


def _cuts(shard: Shard) -> Iterator[tuple[int, int, int, int]]:
    """(first row, rows, first column, columns) of every block."""
    if shard.row_size > limits.BLOCK:
        for row in range(shard.rows):
            for column in range(0, shard.row_size, limits.BLOCK):
                yield row, 1, column, min(limits.BLOCK, shard.row_size - column)
        return
    step = max(1, limits.BLOCK // shard.row_size)
    for row in range(0, shard.rows, step):
        yield row, min(step, shard.rows - row), 0, shard.row_size


def _gathered(
    read: ReadBytes,
    file: FileId,
    shard: Shard,
    element: Element,
    cuts: Sequence[tuple[int, int, int, int]],
) -> Iterator[TensorBlock]:
    """Views, of a transposed or an expanded tensor: gathered into row order block by block."""
    raw = typed(read(file, shard.offset, shard.extent * element.size), element)
    strides = tuple(stride * element.size for stride in shard.strides)
    view = np.lib.stride_tricks.as_strided(raw, shard.shape, strides, writeable=False)
    for row, rows, column, columns in cuts:
        if columns < shard.row_size:
            bits = view[row].flat[column : column + columns]
        else:
            bits = np.ascontiguousarray(view[row : row + rows] if shard.shape else view).reshape(-1)
        yield TensorBlock(row, rows, column, bits, element)


def typed(raw: Bytes, element: Element) -> NDArray[np.generic]:
    """Bytes as elements; copied where they do not begin at a multiple of the element's size."""
    if raw.ctypes.data % element.size:
        raw = raw.copy()
    return raw.view(element.stored)


def _inflated(file: FileId, shard: Shard, sizes: Sequence[int]) -> Iterator[Bytes]:
    """The bytes of a deflated shard in chunks of these sizes; the CRC must fit at the end."""
    chunks, pending, crc = _inflated_chunks(file, shard), bytearray(), 0
    for number, size in enumerate((shard.skip, *sizes)):
        while len(pending) < size:
            chunk = next(chunks, b"")
            if not chunk:
                raise _damaged(file)
            crc = zlib.crc32(chunk, crc)
            pending += chunk
        if number:  # the first are passed over
            yield np.frombuffer(bytes(pending[:size]), np.uint8)
        del pending[:size]
    if pending or next(chunks, b"") or crc != shard.crc:
        raise _damaged(file)


def _inflated_chunks(file: FileId, shard: Shard) -> Iterator[bytes]:
    """At most a MiB at a time, so that a small file cannot ask for much memory."""
    inflating, position = zlib.decompressobj(-15), 0
    while not inflating.eof:
        packed = inflating.unconsumed_tail
        if not packed:
            length = min(MIB, shard.packed - position)
            packed = read_at(_descriptor(file), shard.offset + position, length, file.path)
            position += length
        try:
            chunk = inflating.decompress(packed, MIB)
        except zlib.error:
            raise _damaged(file) from None
        if chunk:
            yield chunk
        elif not packed:
            raise _damaged(file)


def _damaged(file: FileId) -> GradwatchError:
    return GradwatchError(
        f"{file.path} is damaged: a compressed member does not give the bytes it announces."
    )


# -- arrays in memory, and whole tensors -----------------------------------------------------------


def index_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[Index, Access]:
    """Arrays in memory as the tensors of a checkpoint, each a file of its own, and how to read it.

    Types that no checkpoint holds are widened; a complex number is two elements side by side.
    """
    held = {name: _storable(array) for name, array in arrays.items()}
    files = tuple(FileId(name, array.nbytes, 0, 0) for name, array in held.items())
    tensors = []
    for number, (name, array) in enumerate(held.items()):
        shape = array.shape
        shard = Shard(number, 0, shape, row_major(shape), (0,) * len(shape))
        tensors.append(TensorEntry(name, shape, Element(str(array.dtype)), (shard,)))

    def access() -> ReadBytes:
        last: dict[str, Bytes] = {}  # of arrays that are not in row order, one copy is alive

        def read(file: FileId, offset: int, length: int) -> Bytes:
            if file.path not in last:
                last.clear()
                last[file.path] = np.ascontiguousarray(held[file.path]).reshape(-1).view(np.uint8)
            return last[file.path][offset : offset + length]

        return read

    return Index("", "arrays", files, tuple(tensors)), access


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "c":
        parts = np.stack([array.real, array.imag], axis=-1)
        return _storable(parts)
    kind = array.dtype.newbyteorder("=")
    return array.astype(kind if kind.name in SIZES else np.float64, copy=False)


def arrays_of(index: Index) -> dict[str, NDArray[np.floating]] | None:
    """All tensors by name; None where they are too large to be held, or lie in several shards."""
    if index.reach > limits.ALONE_BYTES or any(len(t.shards) != 1 for t in index.tensors):
        return None
    try:
        return {tensor.name: array_of(index, tensor) for tensor in index.tensors}
    finally:
        close_all()


def array_of(index: Index, tensor: TensorEntry) -> NDArray[np.floating]:
    """One tensor that lies in one shard."""
    (shard,) = tensor.shards
    parts = [
        np.array(block.values)
        for block in blocks(reading(), index.files[shard.file], shard, tensor.element)
    ]
    flat = np.concatenate(parts) if parts else np.empty(0, np.float32)
    return flat.reshape(tensor.shape)
