"""`.npy` and `.npz`: numpy's own headers, parsed here; object arrays are refused."""

import math
import re
import zlib
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import Checksum, Index, Piece, Tensor, row_major
from gradwatch.checkpoints.limits import MAX_TENSORS
from gradwatch.checkpoints.readers import archives
from gradwatch.checkpoints.readers.files import OpenFile, opened
from gradwatch.checkpoints.readers.parts import in_order
from gradwatch.checkpoints.readers.sizes import checked_name, checked_shape
from gradwatch.errors import GradwatchError

MAGIC = b"\x93NUMPY"
_HEAD = 64 * 1024
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
_FORM = re.compile(
    r"\{ ?'descr': ?'(?P<descr>[^'\\]{1,16})', ?'fortran_order': ?(?P<fortran>True|False), ?"
    r"'shape': ?\((?P<shape>[0-9, ]{0,512})\),? ?\}[ \n]*"
)


def read_npy(path: Path) -> Index:
    """One array in a file of its own."""
    with opened(path) as file:
        name = path.name.removesuffix(".npy")
        head = file.read(0, min(file.size, _HEAD))
        tensor = _tensor(name, head, 0, file.size, 0, str(path))
        return Index(str(path), "npy", (file.identity,), (tensor,))


def read_npz(path: Path) -> Index:
    """Arrays in a zip archive, stored or deflated."""
    with opened(path) as file:
        members = archives.members(file)
        if len(members) > MAX_TENSORS:
            raise GradwatchError(f"{path} holds more than {MAX_TENSORS} arrays.")
        tensors = []
        for name in in_order(members):
            if not name.endswith(".npy"):
                raise GradwatchError(f"{path} holds {name[:80]!r}, which is no numpy array.")
            member = members[name]
            deflated = member.method == archives.DEFLATED
            head = (
                _inflated_head(file, member)
                if deflated
                else file.read(member.offset, min(member.length, _HEAD))
            )
            packed = member.packed if deflated else 0
            tensors.append(
                _tensor(
                    name.removesuffix(".npy"),
                    head,
                    member.offset,
                    member.length,
                    packed,
                    str(path),
                    member.crc,
                )
            )
        checksums = tuple(
            Checksum(0, m.offset, m.length, m.crc, m.name)
            for m in members.values()
            if m.method == archives.STORED
        )
        return Index(str(path), "npz", (file.identity,), tuple(tensors), checksums)


def is_npz(path: Path) -> bool:
    """Whether every member of the archive is named as an array."""
    with opened(path) as file:
        names = archives.members(file)
        return bool(names) and all(name.endswith(".npy") for name in names)


def _inflated_head(file: OpenFile, member: archives.Member) -> bytes:
    packed = file.read(member.offset, min(member.packed, _HEAD))
    try:
        return zlib.decompressobj(-15).decompress(packed, _HEAD)
    except zlib.error:
        raise GradwatchError(
            f"{file.identity.path}: member {member.name[:80]!r} cannot be inflated; it is damaged."
        ) from None


def _tensor(
    name: str, head: bytes, begin: int, length: int, packed: int, path: str, crc: int = 0
) -> Tensor:
    """The tensor behind a header that begins at `begin` and goes on for `length` bytes."""
    element, fortran, shape, skip = _header(head, name, path)
    if length - skip != math.prod(shape) * element.size:
        raise GradwatchError(
            f"{path}: array {name[:80]!r} of shape {list(shape)} needs "
            f"{math.prod(shape) * element.size} bytes, but {length - skip} are there."
        )
    strides = tuple(reversed(row_major(shape[::-1]))) if fortran else row_major(shape)
    if packed and fortran and len(shape) > 1:
        # Deflated bytes come in one order only: the transposed array has the same elements.
        shape, strides = shape[::-1], row_major(shape[::-1])
    offset = begin if packed else begin + skip
    piece = Piece(0, offset, shape, strides, (0,) * len(shape), packed, skip if packed else 0, crc)
    return Tensor(checked_name(name, path), shape, element, (piece,))


def _header(head: bytes, name: str, path: str) -> tuple[Element, bool, tuple[int, ...], int]:
    def refuse(reason: str) -> Any:
        raise GradwatchError(f"{path}: array {name[:80]!r} is not usable: {reason}.")

    if head[:6] != MAGIC or len(head) < 12:
        refuse("it does not begin as numpy's arrays do")
    width = {1: 2, 2: 4, 3: 4}.get(head[6]) or refuse("its version is unknown")
    size = int.from_bytes(head[8 : 8 + width], "little")
    skip = 8 + width + size
    if skip > len(head):
        refuse(f"its header of {size} bytes is too long or cut short")
    form = _FORM.fullmatch(head[8 + width : skip].decode("latin-1")) or refuse(
        "its header is not the dictionary that numpy writes"
    )
    descr = form["descr"]
    if "O" in descr:
        refuse("it holds Python objects, which are never loaded here")
    if descr not in _ELEMENTS:
        refuse(f"elements of type {descr!r} are not measured")
    sizes = [int(word) for word in form["shape"].replace(",", " ").split()]
    return _ELEMENTS[descr], form["fortran"] == "True", checked_shape(sizes, name, path), skip
