"""`.npy` and `.npz`: numpy's own headers, parsed here; object arrays are refused."""

import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import Checksum, Index, Shard, TensorEntry, row_major
from gradwatch.checkpoints.limits import MAX_TENSORS
from gradwatch.checkpoints.readers.archives import DEFLATED, STORED, Member
from gradwatch.checkpoints.readers.claims import checked_name, checked_shape, in_order
from gradwatch.checkpoints.readers.files import OpenFile
from gradwatch.errors import GradwatchError

MAGIC = b"\x93NUMPY"
_HEAD = 64 * 1024  # bytes in which the header must end
_ELEMENTS = {
    "<f8": Element.FLOAT64,
    "<f4": Element.FLOAT32,
    "<f2": Element.FLOAT16,
    "<i8": Element.INT64,
    "<i4": Element.INT32,
    "<i2": Element.INT16,
    "|i1": Element.INT8,
    "<u8": Element.UINT64,
    "<u4": Element.UINT32,
    "<u2": Element.UINT16,
    "|u1": Element.UINT8,
    "|b1": Element.BOOL,
    "<V2": Element.BFLOAT16,  # how ml_dtypes' bfloat16 is written
    "|V2": Element.BFLOAT16,
}
_HEADER = re.compile(
    r"\{ ?'descr': ?'(?P<descr>[^'\\]{1,16})', ?'fortran_order': ?(?P<fortran>True|False), ?"
    r"'shape': ?\((?P<shape>[0-9, ]{0,512})\),? ?\}[ \n]*"
)


def read_npy(file: OpenFile) -> Index:
    """One array in a file of its own."""
    array = Member(Path(file.path).name, 0, file.size, file.size, STORED, crc=0)
    return Index(file.path, "npy", (file.identity,), (_tensor(file, array),))


def read_npz(file: OpenFile, members: Mapping[str, Member]) -> Index:
    """Arrays in a zip archive, stored or deflated."""
    if len(members) > MAX_TENSORS:
        raise GradwatchError(f"{file.path} holds more than {MAX_TENSORS} arrays.")
    tensors = tuple(_tensor(file, members[name]) for name in in_order(members))
    checksums = tuple(
        Checksum(0, member.offset, member.length, member.crc, member.name)
        for member in members.values()
        if member.method == STORED
    )
    return Index(file.path, "npz", (file.identity,), tensors, checksums)


def _tensor(file: OpenFile, member: Member) -> TensorEntry:
    name = member.name.removesuffix(".npy")
    element, fortran, shape, skip = _header(_head(file, member), name, file.path)
    needed = math.prod(shape) * element.size
    if member.length - skip != needed:
        raise GradwatchError(
            f"{file.path}: array {name[:80]!r} of shape {list(shape)} needs "
            f"{needed} bytes, but {member.length - skip} are there."
        )
    deflated = member.method == DEFLATED
    strides = tuple(reversed(row_major(shape[::-1]))) if fortran else row_major(shape)
    if deflated and fortran and len(shape) > 1:
        # Deflated bytes come in one order only: the transposed array has the same elements.
        shape, strides = shape[::-1], row_major(shape[::-1])
    start = (0,) * len(shape)
    if deflated:
        shard = Shard(0, member.offset, shape, strides, start, member.packed, skip, member.crc)
    else:
        shard = Shard(0, member.offset + skip, shape, strides, start, crc=member.crc)
    return TensorEntry(checked_name(name, file.path), shape, element, (shard,))


def _head(file: OpenFile, member: Member) -> bytes:
    head = file.read(member.offset, min(member.packed, _HEAD))
    if member.method == STORED:
        return head
    try:
        return zlib.decompressobj(-15).decompress(head, _HEAD)
    except zlib.error:
        raise GradwatchError(
            f"{file.path}: member {member.name[:80]!r} cannot be inflated; it is damaged."
        ) from None


def _header(head: bytes, name: str, path: str) -> tuple[Element, bool, tuple[int, ...], int]:
    """Element type, whether columns come first, shape, and the bytes up to the array's own."""

    def refuse(reason: str) -> NoReturn:
        raise GradwatchError(f"{path}: array {name[:80]!r} is not usable: {reason}.")

    if head[:6] != MAGIC or len(head) < 12:
        refuse("it does not begin as numpy's arrays do")
    width = {1: 2, 2: 4, 3: 4}.get(head[6]) or refuse("its version is unknown")
    size = int.from_bytes(head[8 : 8 + width], "little")
    skip = 8 + width + size
    if skip > len(head):
        refuse(f"its header of {size} bytes is too long or cut short")
    fields = _HEADER.fullmatch(head[8 + width : skip].decode("latin-1")) or refuse(
        "its header is not the dictionary that numpy writes"
    )
    descr = fields["descr"]
    if "O" in descr:
        refuse("it holds Python objects, which are never loaded here")
    if descr not in _ELEMENTS:
        refuse(f"elements of type {descr!r} are not measured")
    sizes = [int(word) for word in fields["shape"].replace(",", " ").split()]
    return _ELEMENTS[descr], fields["fortran"] == "True", checked_shape(sizes, name, path), skip
