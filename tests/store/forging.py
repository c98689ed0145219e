"""Forged sealed files: Thrift taken apart, changed and put together, with checksums that hold."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import Grid, Lists, encoded

BYTE, BINARY, LIST, STRUCT = 3, 8, 9, 12
Tree = dict[int, list[Any]]
"""A Thrift struct: field → [type, value]; a list's value is [type of its items, items]."""


class Bytes:
    """A file in memory."""

    def __init__(self, raw: bytes) -> None:
        self.raw = bytes(raw)

    @property
    def size(self) -> int:
        return len(self.raw)

    def read(self, length: int, offset: int) -> bytes:
        return self.raw[max(0, offset) : max(0, offset) + length] if length >= 0 else b""


def struct(raw: bytes, at: int) -> tuple[Tree, int]:
    """The struct that begins at `at`, and where it ends."""
    tree: Tree = {}
    field = 0
    while raw[at]:
        kind, field, at = raw[at] & 15, field + (raw[at] >> 4), at + 1
        value, at = (None, at) if kind in (1, 2) else _value(raw, at, kind)
        tree[field] = [kind, value]
    return tree, at + 1


def _value(raw: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return struct(raw, at)
    if kind == BINARY:
        length, at = _varint(raw, at)
        return raw[at : at + length], at + length
    if kind == LIST:
        count, of, at = raw[at] >> 4, raw[at] & 15, at + 1
        if count == 15:
            count, at = _varint(raw, at)
        items = []
        for _ in range(count):
            item, at = (raw[at], at + 1) if of in (1, 2) else _value(raw, at, of)
            items.append(item)
        return [of, items], at
    if kind == BYTE:
        return raw[at], at + 1
    assert kind in (4, 5, 6), kind
    folded, at = _varint(raw, at)
    return (folded >> 1) ^ -(folded & 1), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] & 128:
        value, shift, at = value | (raw[at] & 127) << shift, shift + 7, at + 1
    return value | raw[at] << shift, at + 1


def written(tree: Tree) -> bytes:
    """The bytes of a struct."""
    out, last = bytearray(), 0
    for field, (kind, value) in sorted(tree.items()):
        out += bytes([field - last << 4 | kind]) + (b"" if kind in (1, 2) else _bytes(kind, value))
        last = field
    return bytes(out + b"\0")


def _bytes(kind: int, value: Any) -> bytes:
    if kind == STRUCT:
        return value if isinstance(value, bytes) else written(value)
    if kind == BINARY:
        return varint(len(value)) + bytes(value)
    if kind == LIST:
        of, items = value
        count = len(items) if isinstance(items, list) else items  # a number: claimed, not there
        head = bytes([0xF0 | of]) + varint(count) if count > 14 else bytes([count << 4 | of])
        return head + b"".join(
            bytes([item]) if of in (1, 2) else _bytes(of, item)
            for item in (items if isinstance(items, list) else [])
        )
    if kind == BYTE:
        return bytes([value])
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def columns(footer: Tree) -> list[Tree]:
    """The column chunks' metadata."""
    (group,) = footer[4][1][1]
    return [chunk[3][1] for chunk in group[1][1][1]]


def reforged(raw: bytes, entry: SealedFile, change: Callable[[Tree], object]) -> "Forgery":
    """The file with its footer changed, and an entry of the manifest that fits it."""
    tree, _ = struct(raw, len(raw) - entry.footer)
    change(tree)
    return with_footer(raw[: len(raw) - entry.footer], written(tree), entry)


Forgery = tuple[bytes, SealedFile]


def with_footer(
    body: bytes, footer: bytes, entry: SealedFile, length: int | None = None
) -> Forgery:
    tail = (len(footer) if length is None else length).to_bytes(4, "little") + b"PAR1"
    return fitting(body + footer + tail, replace(entry, footer=len(footer) + 8))


def fitting(raw: bytes, entry: SealedFile) -> Forgery:
    """The entry with the size and the checksums of these bytes, as far as they can be read."""
    sums = [zlib.crc32(raw[len(raw) - entry.footer :])]
    rows = entry.rows
    if entry.footer > 1 << 19:  # taking it apart would take seconds, and it is refused anyway
        return raw, replace(entry, bytes=len(raw), checksums=(*sums, *entry.checksums[1:]))
    try:  # a few forgeries are beyond reading
        tree, _ = struct(raw, len(raw) - entry.footer)
        rows = tree[3][1]
        for column in columns(tree):
            begin = min(column[9][1], column[11][1]) if 11 in column else column[9][1]
            begin, size = max(0, begin), max(0, column[7][1])
            sums.append(zlib.crc32(raw[begin : begin + size]))
    except (KeyError, IndexError, ValueError, AssertionError, TypeError, RecursionError):
        sums += entry.checksums[1:]
    return raw, replace(entry, bytes=len(raw), checksums=tuple(sums), rows=rows)


def repaged(
    raw: bytes, entry: SealedFile, name: str, change: Callable[[Tree, bytes], Any]
) -> Forgery:
    """The first page of a column changed (its head, and its body where bytes are returned)."""
    tree, _ = struct(raw, len(raw) - entry.footer)
    at = next(n for n, c in enumerate(columns(tree)) if c[3][1][1][0].decode() == name)
    column = columns(tree)[at]
    begin = min(column[9][1], column[11][1]) if 11 in column else column[9][1]
    head, body = struct(raw, begin)
    end = body + head[3][1]
    was = head[2][1]
    page = raw[body:end]
    page = change(head, page) or page
    new = written(head) + page
    grown = len(new) - (end - begin)
    for later in columns(tree):
        for field in (9, 11):
            if field in later and later[field][1] > begin:
                later[field][1] += grown
    column[7][1] += grown
    column[6][1] += head[2][1] - was + len(written(head)) - (body - begin)
    raw = raw[:begin] + new + raw[end:]
    return with_footer(raw[: len(raw) - entry.footer], written(tree), entry)


def sound() -> Forgery:
    """A small file with a column of every kind."""
    rows = 12
    steps = np.repeat(np.arange(0, 12, 2), 2)
    real = np.linspace(-1, 1, rows)
    raw, entry = encoded(
        "rows/grad/00001.parquet",
        {
            "step": steps,
            "subject": np.tile(np.array([3, 7], np.uint32), 6),
            "state": np.zeros(rows, np.uint8),
            "grad_norm": real,
            "grad_skewness": real.astype(np.float32),
            "grad_nan": np.arange(rows, dtype=np.uint64) + np.uint64(2**63),
            "grad_sketch": np.arange(rows * 32, dtype=np.float32).reshape(rows, 32),
            "negative": Lists(np.arange(rows + 1), np.arange(rows, dtype=np.uint64)),
            "first_exponent": np.arange(rows, dtype=np.int32),
            "name": [f"name {n}" for n in range(rows)],
        },
        steps=steps,
        grids=[Grid(np.arange(0, 12, 2), np.array([3, 7], np.uint32))],
        valid={"grad_norm": real > -0.5},
    )
    return bytes(raw), entry


def facts(tree: Tree, value: Any) -> None:
    """Other facts of ours in the footer."""
    (own,) = tree[5][1][1]
    own[2][1] = value if isinstance(value, bytes) else json.dumps(value).encode()
