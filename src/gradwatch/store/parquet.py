"""Sealed files: tables as Parquet, written with checksums and read column by column.

A file is one row group. Its rows are laid out in grids (steps × subjects, the same subjects on each
step), which its footer states, so that a column becomes a table without a search. Readers fetch
the footer and the columns asked for, hold them against the manifest's checksums and against what a
file of ours can be, and only then let pyarrow decode them: a file may come from anywhere.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.store.claims import KEY, check_pages, parse_footer
from gradwatch.store.decoding import decoded, pyarrow
from gradwatch.store.manifest import SealedFile, as_stretches
from gradwatch.store.tables import (
    KEYS,
    ROWS_LIMIT,
    UNPACKED_LIMIT,
    Column,
    ColumnPlace,
    Grid,
    Lists,
    Unreadable,
    Words,
    grids_of,
)

__all__ = ["Column", "Grid", "Lists", "Unreadable", "Words"]  # of modules below

_TAIL = 8
"""Length of the footer and magic: the last bytes of a Parquet file."""
FILE_LIMIT = 1 << 28
_FOOTER_LIMIT = 1 << 24


class RandomAccess(Protocol):
    """An open file of a run, wherever it lies."""

    @property
    def size(self) -> int:
        """Bytes it has."""

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end, none where it cannot be read."""


@cache
def available() -> bool:
    """Whether pyarrow can be imported; the first call does it.

    It also writes and reads a small table: whatever that loads is loaded now, and not by the
    first file that is sealed in the middle of a training.
    """
    try:
        pyarrow()
    except GradwatchError:
        return False
    few = np.arange(1000)
    columns: dict[str, Column | Words] = {
        "step": few,
        "number": few / 2,
        "text": Words(few % 2, ["a", "b"]),
        "list": Lists(np.append(few, 1000), few.astype(np.uint64)),
        "sketch": np.zeros((1000, 2), np.float32),
    }
    for compression in ("lz4", "zstd"):
        masks = {"number": few > 1, "sketch": few > 1}
        raw, entry = encoded("", columns, steps=few, valid=masks, compression=compression)
        kinds = {"step": "i8", "number": "f8", "text": "text", "list": "u8"}
        decoded(
            bytes(raw[-entry.footer :]), len(raw), {0: bytes(raw)}, kinds, len(few), masked=True
        )
    return True


def release_memory() -> None:
    """Give the system back what pyarrow keeps for later."""
    pa, _ = pyarrow()
    pa.default_memory_pool().release_unused()


# -- writing ---------------------------------------------------------------------------------------


def encoded(
    file: str,
    columns: Mapping[str, Column | Words],
    *,
    steps: NDArray[np.int64],
    grids: Sequence[Grid] = (),
    valid: Mapping[str, NDArray[np.bool_]] | None = None,
    compression: str = "lz4",
) -> tuple[memoryview, SealedFile]:
    """The bytes of a sealed file and its entry in the manifest.

    Two-dimensional columns become lists of fixed length. Where `valid` says False, a column is
    null: other programs then leave the row out of their means instead of meeting a NaN.
    """
    pa, pq = pyarrow()
    masks = valid or {}
    # The system's allocator gives back what it frees; pyarrow's own keeps it, and with it the
    # memory of the training process would grow with the largest file sealed so far.
    pool = pa.system_memory_pool()
    arrays = [_array(pa, column, masks.get(name)) for name, column in columns.items()]
    facts = json.dumps({"grids": [grid.to_json() for grid in grids]})
    fields = [
        pa.field(name, array.type, nullable=name not in KEYS or array.null_count > 0)
        for name, array in zip(columns, arrays, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    real = [name for name, column in columns.items() if _is_real(column)]
    collected: list[Any] = []
    sink = pa.BufferOutputStream(memory_pool=pool)
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=compression,
        compression_level=1 if compression == "zstd" else None,
        use_dictionary=[name for name in columns if name not in (*real, "step")],
        column_encoding={
            **dict.fromkeys(real, "BYTE_STREAM_SPLIT"),
            **({"step": "DELTA_BINARY_PACKED"} if "step" in columns else {}),
        },
        # Those of whole numbers tell constants; of reals they would only make the footer longer.
        write_statistics=[name for name in columns if name not in real],
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=collected,
        memory_pool=pool,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({KEY: facts.encode()})
    raw = memoryview(sink.getvalue())
    ordered = np.sort(steps)  # np.unique would import more of numpy, in the writer's thread
    distinct = ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]
    return raw, _entry(file, raw, collected[0], distinct)


def _array(pa: Any, column: Column | Words, valid: NDArray[np.bool_] | None) -> Any:
    """The column for pyarrow, from its bytes: `pa.array` would import pandas where there is one."""
    nulls = None
    if valid is not None and not valid.all():
        nulls = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if isinstance(column, Words):
        return pa.DictionaryArray.from_arrays(
            _array(pa, column.numbers.astype(np.int32), None), _array(pa, column.words, None)
        )
    if isinstance(column, list):
        # A name may hold half of a surrogate pair, which UTF-8 cannot.
        texts = [text.encode("utf-8", "backslashreplace") for text in column]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        parts = [nulls, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(texts), parts)
    if isinstance(column, np.ndarray) and column.ndim == 2:
        width = column.shape[1]
        kept = column if nulls is None else column[valid]  # a null has no values
        widths = np.full(len(column), width) if nulls is None else valid * width
        column = Lists(np.append(0, np.cumsum(widths)), kept.reshape(-1))
    if isinstance(column, Lists):
        values = _array(pa, column.values, None)
        parts = [nulls, pa.py_buffer(column.offsets.astype(np.int32))]
        rows = len(column.offsets) - 1
        return pa.Array.from_buffers(pa.list_(values.type), rows, parts, children=[values])
    parts = [nulls, pa.py_buffer(np.ascontiguousarray(column))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), len(column), parts)


def _is_real(column: Column | Words) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == "f"


def _entry(file: str, raw: memoryview, metadata: Any, steps: NDArray[np.int64]) -> SealedFile:
    footer = int.from_bytes(raw[-_TAIL:-4], "little") + _TAIL
    sums = [zlib.crc32(raw[-footer:])]
    group = metadata.row_group(0)
    for at in range(metadata.num_columns):
        column = group.column(at)
        begin = column.data_page_offset
        if column.has_dictionary_page:
            begin = min(begin, column.dictionary_page_offset)
        sums.append(zlib.crc32(raw[begin : begin + column.total_compressed_size]))
    rows = metadata.num_rows
    return SealedFile(file, len(raw), rows, as_stretches(steps), footer, tuple(sums))


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footer:
    """What a file says about its columns, held against its entry and its size."""

    raw: bytes
    size: int
    rows: int
    columns: Mapping[str, ColumnPlace]
    grids: tuple[Grid, ...]

    @property
    def names(self) -> frozenset[str]:
        """Of its columns."""
        return frozenset(self.columns)

    @property
    def held_bytes(self) -> int:
        """Memory it takes."""
        return 2 * len(self.raw) + sum(grid.steps.nbytes + grid.ids.nbytes for grid in self.grids)


Isolation = Callable[..., Any]
"""Calls a function with arguments, of which the first tells the file apart; perhaps in another
process, whose death is Unreadable (`isolation.Decoder`)."""


def directly(function: Callable[..., Any], *arguments: Any) -> Any:
    """No isolation: the function is called."""
    return function(*arguments)


def read_footer(file: RandomAccess, entry: SealedFile | None) -> Footer:
    """The file's footer; without an entry (the manifest is lost) it is taken at its word."""
    size = file.size
    if entry and size != entry.bytes:
        raise Unreadable(f"it has {size} bytes instead of {entry.bytes}")
    length = entry.footer if entry else int.from_bytes(file.read(4, size - _TAIL), "little") + _TAIL
    if not _TAIL < length <= min(size, _FOOTER_LIMIT) or size > FILE_LIMIT:
        raise Unreadable("it has no footer, or one that no file of ours has")
    raw = file.read(length, size - length)
    if len(raw) != length or (entry and entry.checksums[:1] != (zlib.crc32(raw),)):
        raise Unreadable("its footer is damaged")
    rows, columns, facts = parse_footer(raw, entry.checksums[1:] if entry else None)
    if (entry and rows != entry.rows) or not 0 <= rows <= ROWS_LIMIT:
        raise Unreadable(f"it has {rows} rows, which does not fit the manifest")
    end = 4
    for place in columns if rows else ():
        if place.offset < end or place.size < 1 or place.offset + place.size > size - length:
            raise Unreadable(f"its column {place.name} lies outside of the file")
        end = place.offset + place.size
    by_name = {place.name: place for place in columns}
    if len(by_name) != len(columns):
        raise Unreadable("it has several columns of one name")
    try:
        grids = grids_of(facts, rows)
    except ValueError as error:
        raise Unreadable(f"its grids make no sense: {error}") from None
    return Footer(raw, size, rows, by_name, grids)


def read_columns(
    file: RandomAccess,
    footer: Footer,
    names: Sequence[str],
    call: Isolation = directly,
    *,
    masked: bool = False,
) -> dict[str, Column]:
    """These columns, decoded; null is NaN, 0 or "", and numbers are masked where it is, if wanted.

    Raises Unreadable where bytes are missing or changed, KeyError for a column there is not.
    """
    out: dict[str, Column] = {}
    pieces: dict[int, bytes] = {}
    wanted: dict[str, ColumnPlace] = {}
    for name in names:
        place = footer.columns[name]
        if problem := place.problem(footer.rows, event="text" in footer.columns):
            raise Unreadable(problem)
        if place.constant is not None:
            out[name] = np.broadcast_to(np.array(place.constant, place.kind), footer.rows)
        elif not footer.rows:
            out[name] = place.nothing()
        else:
            wanted[name] = place
    if sum(place.unpacked for place in wanted.values()) > UNPACKED_LIMIT:
        raise Unreadable("its columns claim more than is unpacked at once")
    for name, place in wanted.items():
        raw = file.read(place.size, place.offset)
        if len(raw) != place.size or place.checksum not in (None, zlib.crc32(raw)):
            raise Unreadable(f"its column {name} is damaged")
        check_pages(raw, place.values, place.unpacked)
        pieces[place.offset] = raw
    if wanted:
        kinds = {name: place.kind for name, place in wanted.items()}
        out |= call(decoded, footer.raw, footer.size, pieces, kinds, footer.rows, masked)
    return out
