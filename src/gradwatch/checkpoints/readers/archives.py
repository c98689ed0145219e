"""Zip archives, parsed once and strictly: what two programs could read differently is refused."""

import struct
from dataclasses import dataclass
from typing import NoReturn

from gradwatch.checkpoints.limits import (
    FREE_EXPANSION,
    MAX_DIRECTORY,
    MAX_ENTRIES,
    MAX_EXPANSION,
    MAX_NAME,
)
from gradwatch.checkpoints.readers.files import OpenFile
from gradwatch.errors import GradwatchError

_END, _END64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_CENTRAL, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_FULL = 0xFFFFFFFF
STORED, DEFLATED = 0, 8


@dataclass(frozen=True, slots=True)
class Member:
    """Where the bytes of one file inside the archive are."""

    name: str
    offset: int
    length: int
    """Bytes once inflated."""
    packed: int
    """Bytes in the archive."""
    method: int
    crc: int


def looks_like(head: bytes) -> bool:
    """Whether the first bytes are those of a member, or of the end of an empty archive."""
    return head[:4] in (_LOCAL, _END)


def members(file: OpenFile) -> dict[str, Member]:
    """All members by name, stored and deflated ones."""
    directory, count, directory_end = _directory(file)
    by_name: dict[str, Member] = {}
    position, first = 0, directory_end
    folded: set[str] = set()
    for _ in range(count):
        member, header, position = _central(file, directory, position)
        # torch looks for names without regard to case, numpy and we do not
        folded.add(member.name.casefold())
        if len(folded) == len(by_name):
            _refuse(file, f"the name {member.name[:80]!r} stands in it twice")
        by_name[member.name] = member
        first = min(first, header)
    if by_name and first:
        _refuse(file, f"it has {first} bytes in front of its first member")
    if position != len(directory):
        _refuse(file, "its directory has more in it than it says")
    _must_lie_apart(file, list(by_name.values()), directory_end - len(directory))
    inflated = sum(member.length for member in by_name.values())
    if inflated > max(FREE_EXPANSION, MAX_EXPANSION * file.size):
        _refuse(file, f"it would grow from {file.size} to {inflated} bytes")
    return by_name


def _directory(file: OpenFile) -> tuple[bytes, int, int]:
    """The central directory's bytes, its number of entries, and where it ends."""
    if file.size < 22:
        _refuse(file, "it is too short")
    at = file.size - 22
    magic, disk, start, here, count, length, offset, comment = struct.unpack(
        "<4s4H2IH", file.read(at, 22)
    )
    if magic != _END:
        _refuse(
            file, "it does not end with a directory, so it is cut short or has something behind"
        )
    if comment:
        _refuse(file, "its directory announces a comment that is not there")
    if at >= 20 and file.read(at - 20, 4) == _LOCATOR:
        at, *wide = _directory64(file, at - 20)
        narrow = (here, count, length, offset)
        full = (0xFFFF, 0xFFFF, _FULL, _FULL)
        if any(n not in (w, f) for n, w, f in zip(narrow, wide, full, strict=True)):
            _refuse(file, "its two directories disagree")
        here, count, length, offset = wide
    if disk or start or here != count:
        _refuse(file, "it is one part of several")
    if count > MAX_ENTRIES or length > MAX_DIRECTORY:
        _refuse(file, f"it claims {count} members in a directory of {length} bytes")
    if offset + length != at:
        _refuse(file, "its directory is not where it says")
    return file.read(offset, length), count, at


def _directory64(file: OpenFile, locator: int) -> tuple[int, int, int, int, int]:
    """Where the 64-bit end record is, then its entries here, entries, length and offset."""
    disk, at, disks = struct.unpack("<IQI", file.read(locator + 4, 16))
    if disk or disks > 1 or at + 56 != locator or file.read(at, 4) != _END64:
        _refuse(file, "its 64-bit directory is not where it says")
    size, _, _, disk, start, here, count, length, offset = struct.unpack(
        "<Q2H2I4Q", file.read(at + 4, 52)
    )
    if size != 44 or disk or start:
        _refuse(file, "its 64-bit directory has an unusual form")
    return at, here, count, length, offset


def _central(file: OpenFile, directory: bytes, position: int) -> tuple[Member, int, int]:
    """The member that the directory describes at `position`, where its header begins, and where
    the directory's next entry does."""
    entry = directory[position : position + 46]
    if len(entry) < 46 or entry[:4] != _CENTRAL:
        _refuse(file, "its directory is damaged")
    flags, method, crc, packed, length, name_size, extra_size, comment_size, disk, offset = (
        struct.unpack("<8x2H4x3I4H6xI", entry)
    )
    begin = position + 46
    end = begin + name_size + extra_size + comment_size
    if end > len(directory) or disk:
        _refuse(file, "its directory is damaged")
    name = _name(file, directory[begin : begin + name_size])
    extra = directory[begin + name_size : end - comment_size]
    length, packed, offset = _wide(file, extra, (length, packed, offset))
    if flags & 0x2061:
        _refuse(file, "it is encrypted or patched")
    if method not in (STORED, DEFLATED):
        _refuse(file, f"its member {name[:80]!r} is compressed in an unusual way")
    if method == STORED and packed != length:
        _refuse(file, f"its member {name[:80]!r} has two sizes")
    data = _local(file, offset, name, (crc, packed, length), method)
    return Member(name, data, length, packed, method, crc), offset, end


def _local(file: OpenFile, offset: int, name: str, sizes: tuple[int, int, int], method: int) -> int:
    """Compare the header in front of the data with the directory; where the data begin."""
    magic, local_method, *local_sizes, name_size, extra_size = struct.unpack(
        "<4s4xH4x3I2H", file.read(offset, 30)
    )
    local_name = file.read(offset + 30, name_size)
    if magic != _LOCAL or _name(file, local_name) != name or local_method != method:
        _refuse(file, f"the header of its member {name[:80]!r} disagrees with the directory")
    for here, there in zip(local_sizes, sizes, strict=True):
        if here not in (0, _FULL, there):  # 0: written behind the data, as torch does
            _refuse(file, f"the sizes of its member {name[:80]!r} disagree")
    return int(offset + 30 + name_size + extra_size)


def _wide(file: OpenFile, extra: bytes, narrow: tuple[int, int, int]) -> tuple[int, int, int]:
    """Sizes and offset, from the 64-bit extra field where the narrow ones are full."""
    values = list(narrow)
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack("<2H", extra[position : position + 4])
        body = extra[position + 4 : position + 4 + size]
        if kind == 1:
            full = [i for i, value in enumerate(values) if value == _FULL]
            if len(body) < 8 * len(full):
                _refuse(file, "a 64-bit size of it is missing")
            for i, value in zip(full, struct.iter_unpack("<Q", body[: 8 * len(full)]), strict=True):
                values[i] = value[0]
        position += 4 + size
    return values[0], values[1], values[2]


def _name(file: OpenFile, raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        _refuse(file, "a name in it is not text")
    if not name or len(name) > MAX_NAME or "\0" in name:
        _refuse(file, "a name in it is empty, too long or broken")
    return name


def _must_lie_apart(file: OpenFile, listed: list[Member], directory: int) -> None:
    """No two members share bytes, and none reaches into the directory."""
    reached = 0
    for member in sorted(listed, key=lambda member: (member.offset, member.packed)):
        if member.offset < reached:
            _refuse(file, f"its member {member.name[:80]!r} lies over another")
        reached = member.offset + member.packed
    if reached > directory:
        _refuse(file, "a member reaches into the directory")


def _refuse(file: OpenFile, reason: str) -> NoReturn:
    raise GradwatchError(f"{file.path} is not a usable zip archive: {reason}.")
