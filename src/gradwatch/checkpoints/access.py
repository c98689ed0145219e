"""Two ways to a file's bytes: `pread` in the calling process, mapping in worker processes."""

import mmap
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.index import Checksum, FileId, Piece
from gradwatch.checkpoints.limits import MIB
from gradwatch.checkpoints.readers.files import identified, place, read_at
from gradwatch.errors import GradwatchError

Bytes = NDArray[np.uint8]
_OPEN = 32


class Access(Protocol):
    """Gives bytes of a file; what it gave may be overwritten by the next call."""

    def view(self, file: FileId, offset: int, length: int) -> Bytes: ...


class Reading:
    """`pread` into memory of our own: a file that shrinks is noticed, not fatal."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def view(self, file: FileId, offset: int, length: int) -> Bytes:
        descriptor = _descriptor(file)
        if len(self._buffer) < length:
            self._buffer = np.empty(length, np.uint8)
        target = self._buffer[:length]
        done = 0
        while done < length:
            count = os.preadv(descriptor, [target[done : done + 64 * MIB].data], offset + done)
            if not count:
                raise changed(file)
            done += count
        return target


class Mapped:
    """The file mapped: no copy, but a file that shrinks kills the process. For workers only."""

    def __init__(self) -> None:
        self._maps: OrderedDict[FileId, Bytes] = OrderedDict()

    def view(self, file: FileId, offset: int, length: int) -> Bytes:
        if file not in self._maps:
            descriptor = _descriptor(file)
            mapped = mmap.mmap(descriptor, file.size, access=mmap.ACCESS_READ)
            self._maps[file] = np.frombuffer(mapped, np.uint8)
            if len(self._maps) > _OPEN:
                self._maps.popitem(last=False)
        self._maps.move_to_end(file)
        return self._maps[file][offset : offset + length]


def changed(file: FileId) -> GradwatchError:
    """What to say about a file that is no longer what its header was read from."""
    return GradwatchError(
        f"{file.path} changed while reading. Wait until it is written, then try again."
    )


def unchanged(file: FileId) -> bool:
    """Whether the file on the disk is still the one whose header was read."""
    try:
        status = os.stat(place(file.path))
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified)


class _Descriptors:
    """The files last opened by one thread; closed with it."""

    def __init__(self) -> None:
        self.found: OrderedDict[FileId, int] = OrderedDict()

    def close(self, kept: int = 0) -> None:
        while len(self.found) > kept:
            os.close(self.found.popitem(last=False)[1])

    def __del__(self) -> None:
        self.close()


class _Own(threading.local):
    """What each thread has for itself: a cluster's workers may run several tasks at once."""

    def __init__(self) -> None:
        self.descriptors = _Descriptors()
        self.mapped = Mapped()


_own = _Own()


def mapped() -> Mapped:
    """The mappings of this thread of a worker process."""
    return _own.mapped


def _descriptor(file: FileId) -> int:
    """An open descriptor of exactly this file; the last few stay open."""
    found = _own.descriptors.found
    if file not in found:
        try:
            descriptor = os.open(place(file.path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise changed(file) from None
        now = identified(descriptor, file.path)
        if (now.size, now.modified) != (file.size, file.modified):
            os.close(descriptor)
            raise changed(file)
        found[file] = descriptor
        _own.descriptors.close(kept=_OPEN)
    found.move_to_end(file)
    return found[file]


def close_all() -> None:
    """Close the descriptors that stayed open in this thread."""
    _own.descriptors.close()


def inflated(file: FileId, piece: Piece, sizes: Sequence[int]) -> Iterator[Bytes]:
    """The bytes of a deflated piece in chunks of these sizes; the CRC must fit at the end."""
    stream = _Inflating(file, piece)
    stream.take(piece.skip)
    for size in sizes:
        yield np.frombuffer(stream.take(size), np.uint8)
    if stream.more() or stream.pending or stream.crc != piece.crc:
        raise _damaged(file)


class _Inflating:
    """A deflated member, a MiB at a time."""

    def __init__(self, file: FileId, piece: Piece) -> None:
        self.file, self.piece, self.position, self.crc = file, piece, 0, 0
        self.machine, self.pending = zlib.decompressobj(-15), bytearray()

    def take(self, length: int) -> bytes:
        while len(self.pending) < length:
            if not self.more():
                raise _damaged(self.file)
        found = bytes(self.pending[:length])
        del self.pending[:length]
        return found

    def more(self) -> bool:
        """Inflate some more; False at the end."""
        while not self.machine.eof:
            packed = self.machine.unconsumed_tail or self._packed()
            try:
                found = self.machine.decompress(packed, MIB)
            except zlib.error:
                raise _damaged(self.file) from None
            self.crc = zlib.crc32(found, self.crc)
            self.pending += found
            if found:
                return True
            if not packed:
                raise _damaged(self.file)
        return False

    def _packed(self) -> bytes:
        length = min(MIB, self.piece.packed - self.position)
        begin = self.piece.offset + self.position
        self.position += length
        return read_at(_descriptor(self.file), begin, length, self.file.path)


def checksum_fits(file: FileId, checksum: Checksum) -> bool:
    """Whether the bytes have the CRC-32 that the archive's directory gives."""
    descriptor, crc = _descriptor(file), 0
    for begin in range(0, checksum.length, 4 * MIB):
        length = min(4 * MIB, checksum.length - begin)
        crc = zlib.crc32(read_at(descriptor, checksum.offset + begin, length, file.path), crc)
    return crc == checksum.crc


def _damaged(file: FileId) -> GradwatchError:
    return GradwatchError(
        f"{file.path} is damaged: a compressed member does not give the bytes it announces."
    )
