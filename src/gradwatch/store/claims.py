"""What a Parquet file claims about itself, read without pyarrow: its footer, its pages' heads.

pyarrow ends the whole process over some footers that make no sense, and takes as much memory as a
page's head asks for. A file may come from anywhere; so both are read here first, and pyarrow only
gets to see what a file of ours can be.
"""

from collections.abc import Sequence
from typing import Any

from gradwatch.store.tables import ColumnPlace, Unreadable

KEY = b"gradwatch"
"""Under which the footer has our own facts."""
_ITEMS_LIMIT = 1 << 12
"""Columns of a file, pages of a column."""
_DEEPEST = 8
_SMALL, _NUMBER, _LONG, _DOUBLE, _BYTES, _LIST, _STRUCT = 3, 5, 6, 7, 8, 9, 12
"""Types of Thrift's compact protocol, in which both are written."""
_BITS = {4: 15, _NUMBER: 31, _LONG: 63}
_KINDS = {
    (5, None): "f8",
    (4, None): "f4",
    (2, None): "i8",
    (2, 14): "u8",
    (1, None): "i4",
    (1, 13): "u4",
    (1, 12): "u2",
    (1, 11): "u1",
    (6, 0): "text",
}
"""Parquet's types and what they mean, by numpy's names."""
_PACKINGS = {0, 6, 7}
"""Not at all, zstd, lz4."""
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_RUNS = 3
_ENCODINGS = {0, 2, _RUNS, 5, 8, 9}
"""Plain, dictionary (two names), runs, deltas of numbers, byte streams: those we write. Others,
such as texts that continue the text before them, unpack to any length."""

Struct = dict[tuple[int, int], Any]
"""Values by field and type: a field of another type than it should have is not there."""


def parse_footer(
    raw: bytes, checksums: Sequence[int] | None
) -> tuple[int, list[ColumnPlace], bytes]:
    """Rows, columns and our own facts of a file with this footer."""
    try:
        tree, end = _struct(raw, 0)
        (group,), (own,), rows = tree[4, _LIST], tree[5, _LIST], tree[3, _LONG]
        leaves, chunks = _leaves(tree[2, _LIST]), group[1, _LIST]
        sums = [None] * len(chunks) if checksums is None else checksums
        if not len(leaves) == len(chunks) == len(sums):
            raise Unreadable("it has other columns than it should have")
        tail = end.to_bytes(4, "little") + b"PAR1"
        if (8, _STRUCT) in tree or raw[end:] != tail:  # 8: encrypted
            raise Unreadable("it has a footer of another make")
        if group[3, _LONG] != rows or own[1, _BYTES] != KEY:
            raise Unreadable("it was not written by gradwatch")
        columns = [_column(*parts) for parts in zip(leaves, chunks, sums, strict=True)]
        return rows, columns, own[2, _BYTES]
    except (IndexError, KeyError, TypeError, ValueError, StopIteration):
        raise Unreadable("its footer makes no sense") from None


def _leaves(schema: list[Struct]) -> list[tuple[list[bytes], Struct]]:
    """Path and type of every column: numbers, texts, or lists of them."""
    leaves = []
    elements = iter(schema[1:])
    for element in elements:
        path = [element[4, _BYTES]]
        while (5, _NUMBER) in element:  # it has a child
            element = next(elements)
            path.append(element[4, _BYTES])
        leaves.append((path, element))
    return leaves


def _column(leaf: tuple[list[bytes], Struct], chunk: Struct, checksum: int | None) -> ColumnPlace:
    (name, *inner), element = leaf
    about = chunk[3, _STRUCT]
    kind = _KINDS.get((element[1, _NUMBER], element.get((6, _NUMBER))), "")
    usual = about[1, _NUMBER] == element[1, _NUMBER] and about[3, _LIST] == [name, *inner]
    plain = (1, _BYTES) not in chunk and (8, _STRUCT) not in chunk  # elsewhere, encrypted
    if inner not in ([], [b"list", b"element"]) or about[4, _NUMBER] not in _PACKINGS:
        kind = ""
    begin, first = about[9, _LONG], about.get((11, _LONG), 0)
    return ColumnPlace(
        name.decode(),
        kind if usual and plain else "",
        bool(inner),
        min(begin, first) if first else begin,
        about[7, _LONG],
        about[6, _LONG],
        about[5, _LONG],
        None if inner else _constant(kind, about.get((12, _STRUCT), {})),
        checksum,
    )


def _constant(kind: str, facts: Struct) -> int | None:
    """The only value of a column of whole numbers; their extremes are exact, unlike others'."""
    low, high = facts.get((6, _BYTES)), facts.get((5, _BYTES))
    if kind[:1] not in ("i", "u") or facts.get((3, _LONG)) != 0 or low is None or low != high:
        return None
    value = int.from_bytes(low, "little", signed=kind[0] == "i")
    size = int(kind[1])
    return value if len(low) == max(size, 4) and value < 1 << 8 * size else None


def check_pages(raw: bytes, values: int, unpacked: int) -> None:
    """The pages fill these bytes, and together hold so many values and bytes when unpacked."""
    at = held = size = pages = 0
    try:
        while at < len(raw):
            head, body = _struct(raw, at)
            kind, page_size, packed = head[1, _NUMBER], head[2, _NUMBER], head[3, _NUMBER]
            page = head[{_DATA_PAGE: 5, _DICTIONARY_PAGE: 7}[kind], _STRUCT]
            count, encoding = page[1, _NUMBER], page[2, _NUMBER]
            levels = {page[3, _NUMBER], page[4, _NUMBER]} if kind == _DATA_PAGE else {_RUNS}
            checked = (4, _NUMBER) in head
            if not checked or encoding not in _ENCODINGS or levels != {_RUNS}:
                raise Unreadable("a page is of another make")
            if min(page_size, packed, count) < 0 or count > values:
                raise Unreadable("a page claims what its column does not have")
            pages += 1
            held += count if kind == _DATA_PAGE else 0
            size += body - at + page_size
            at = body + packed
            if size > unpacked or held > values or at > len(raw) or pages > _ITEMS_LIMIT:
                raise Unreadable("its pages claim more than its footer says")
    except (IndexError, KeyError, ValueError):
        raise Unreadable("a page has no head") from None
    if (held, size) != (values, unpacked):
        raise Unreadable("its pages hold other values than its footer says")


# -- Thrift ----------------------------------------------------------------------------------------


def _struct(raw: bytes, at: int, depth: int = 0) -> tuple[Struct, int]:
    """The struct that begins at `at`, and where it ends; ValueError where there is none."""
    fields: Struct = {}
    field = 0
    if depth > _DEEPEST:
        raise ValueError("nested too deep")
    while byte := raw[at]:
        kind = byte & 15
        if byte > 15:
            field, at = field + (byte >> 4), at + 1
        else:
            field, at = _number(raw, at + 1)
        if (field, kind) in fields:  # of which two readers could take different ones
            raise ValueError("a field twice")
        if kind in _BITS and (small := raw[at]) < 128:  # most of them, and the quickest way
            fields[field, kind], at = (small >> 1) ^ -(small & 1), at + 1
        else:
            fields[field, kind], at = _value(raw, at, kind, depth)
    return fields, at + 1


def _value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if bits := _BITS.get(kind):
        value, at = _number(raw, at)
        if not -1 << bits <= value < 1 << bits:
            raise ValueError("too long a number")
        return value, at
    if kind == _BYTES:
        length, at = _varint(raw, at)
        return raw[at : at + length], at + length
    if kind == _STRUCT:
        return _struct(raw, at, depth + 1)
    if kind == _LIST:
        count, of = raw[at] >> 4, raw[at] & 15
        if count < 15:
            at += 1
        else:
            count, at = _varint(raw, at + 1)
        if count > _ITEMS_LIMIT or of <= _SMALL:
            raise ValueError("too long a list")
        items = []
        for _ in range(count):
            item, at = _value(raw, at, of, depth + 1)
            items.append(item)
        return items, at
    if kind > _DOUBLE:
        raise ValueError("a type that footers do not have")
    return None, at + {_SMALL: 1, _DOUBLE: 8}.get(kind, 0)  # truth is in the type itself


def _number(raw: bytes, at: int) -> tuple[int, int]:
    folded, at = _varint(raw, at)
    return (folded >> 1) ^ -(folded & 1), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := raw[at]) > 127:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise ValueError("too long a number")
    return value | byte << shift, at + 1
