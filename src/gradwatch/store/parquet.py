"""Sealed files: tables as Parquet, written with checksums and read column by column.

A file is one row group. Its rows are laid out in grids (steps × subjects, the same subjects on each
step), which its footer states, so that a column becomes a table without a search. Readers fetch
the footer and the columns asked for, hold them against the manifest's checksums, and only then let
pyarrow decode them: a file may come from anywhere.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store.manifest import SealedFile, as_stretches, numbers_of, stretches

_KEY = b"gradwatch"
_TAIL = 8
"""Length of the footer and magic: the last bytes of a Parquet file."""
_FOOTER_LIMIT = 16 << 20
_COLUMN_LIMIT = 256 << 20
"""Bytes that a column may claim to have unpacked; ours stay below a tenth of it."""
_ROWS_LIMIT = 1 << 24
_NUMBERS = {name: name for name in ("int8", "int16", "int32", "int64")}
_NUMBERS |= {f"u{name}": f"u{name}" for name in _NUMBERS}
_NUMBERS |= {"float": "float32", "double": "float64"}
"""Types of numbers that a column may have, in pyarrow's words and in numpy's."""


class RandomAccess(Protocol):
    """An open file of a run, wherever it lies."""

    @property
    def size(self) -> int:
        """Bytes it has."""

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end, none where it cannot be read."""


class Unreadable(Exception):
    """A sealed file that is not what the manifest says, or cannot be decoded."""


@dataclass(frozen=True)
class Grid:
    """Rows of the same subjects: step after step, and in a step subject after subject.

    In rollups the steps are those of all rows inside, and bucket after bucket stands for `sizes`
    of them.
    """

    steps: NDArray[np.int64]
    ids: NDArray[np.uint32]
    sizes: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Steps or buckets, and subjects."""
        return len(self.steps if self.sizes is None else self.sizes), len(self.ids)

    def to_json(self) -> list[Any]:
        """As the footer states it: steps, subjects and sizes as stretches."""
        sizes = () if self.sizes is None else (as_stretches(self.sizes),)
        return [as_stretches(self.steps), as_stretches(self.ids), *sizes]

    @classmethod
    def from_json(cls, data: Any) -> "Grid":
        """Raises ValueError where the data make no sense."""
        steps, ids, *sizes = (numbers_of(stretches(part)) for part in data)
        if len(sizes) > 1 or (len(ids) and (ids.min() < 0 or ids.max() >= 1 << 32)):
            raise ValueError("a grid of another make")
        if sizes and (sizes[0].min(initial=1) < 1 or int(sizes[0].sum()) != len(steps)):
            raise ValueError("buckets of other rows than there are")
        return cls(steps, ids.astype(np.uint32), sizes[0] if sizes else None)


class Lists(NamedTuple):
    """A column of lists: row i has values[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]


class Words(NamedTuple):
    """A column of few distinct texts to write: row i has words[numbers[i]]."""

    numbers: NDArray[Any]
    words: list[str]


Column = NDArray[Any] | Lists | list[str]


@cache
def available() -> bool:
    """Whether pyarrow can be imported; the first call does it.

    It also writes and reads a small table: whatever that loads is loaded now, and not by the
    first file that is sealed in the middle of a training.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
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
        raw, _ = encoded("", columns, steps=few, valid=masks, compression=compression)
        decoded(len(raw), {0: bytes(raw)}, list(columns), len(few))
    return True


def release_memory() -> None:
    """Give the system back what pyarrow keeps for later."""
    pa, _ = _pyarrow()
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
    pa, pq = _pyarrow()
    masks = valid or {}
    # The system's allocator gives back what it frees; pyarrow's own keeps it, and with it the
    # memory of the training process would grow with the largest file sealed so far.
    pool = pa.system_memory_pool()
    arrays = {name: _array(pa, column, masks.get(name)) for name, column in columns.items()}
    table = pa.table(arrays)
    facts = json.dumps({"grids": [grid.to_json() for grid in grids]})
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
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=collected,
        memory_pool=pool,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({_KEY.decode(): facts})
    raw = memoryview(sink.getvalue())
    return raw, _entry(file, raw, collected[0], np.unique(steps))


def _array(pa: Any, column: Column | Words, valid: NDArray[np.bool_] | None) -> Any:
    """Made from buffers throughout: `pa.array` would import pandas where it is installed."""
    if isinstance(column, Lists):
        values = _array(pa, column.values, None)
        return pa.ListArray.from_arrays(_array(pa, column.offsets.astype(np.int32), None), values)
    if isinstance(column, Words):
        index = _array(pa, column.numbers.astype(np.int32), None)
        return pa.DictionaryArray.from_arrays(index, _array(pa, column.words, None))
    if isinstance(column, list):
        # A name may hold half of a surrogate pair, which UTF-8 cannot.
        texts = [text.encode("utf-8", "backslashreplace") for text in column]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(texts), buffers)
    bits = None
    if valid is not None and not valid.all():
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if column.ndim == 2:
        inner = _array(pa, column.reshape(-1), None)
        kind = pa.list_(inner.type, column.shape[1])
        return pa.Array.from_buffers(kind, len(column), [bits], children=[inner])
    kind = pa.from_numpy_dtype(column.dtype)
    buffers = [bits, pa.py_buffer(np.ascontiguousarray(column))]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _is_real(column: Column | Words) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == "f"


def _entry(file: str, raw: memoryview, metadata: Any, steps: NDArray[np.int64]) -> SealedFile:
    footer = int.from_bytes(raw[-_TAIL:-4], "little") + _TAIL
    sums = [zlib.crc32(raw[-footer:])]
    for at in range(metadata.num_columns if metadata.num_row_groups else 0):
        begin, size = _place(metadata.row_group(0).column(at))
        sums.append(zlib.crc32(raw[begin : begin + size]))
    rows = metadata.num_rows
    return SealedFile(file, len(raw), rows, as_stretches(steps), footer, tuple(sums))


def _place(column: Any) -> tuple[int, int]:
    """Offset and length of a column's bytes."""
    begin = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        begin = min(begin, column.dictionary_page_offset)
    return begin, column.total_compressed_size


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnPlace:
    """Where a (leaf) column's bytes are; its only value where a whole column is one number."""

    name: str
    offset: int
    size: int
    checksum: int | None
    constant: int | None


@dataclass(frozen=True)
class Footer:
    """What a file says about its columns, held against its entry and its size."""

    raw: bytes
    size: int
    rows: int
    columns: tuple[ColumnPlace, ...]
    grids: tuple[Grid, ...]
    names: frozenset[str] = field(default=frozenset())


Isolation = Callable[..., Any]
"""Calls a function with arguments, perhaps in another process, whose death is Unreadable."""


def directly(function: Callable[..., Any], *arguments: Any) -> Any:
    """No isolation: the function is called."""
    return function(*arguments)


def read_footer(file: RandomAccess, entry: SealedFile | None, call: Isolation = directly) -> Footer:
    """The file's footer; without an entry (the manifest is lost) it is taken at its word."""
    size = file.size
    if entry and size != entry.bytes:
        raise Unreadable(f"it has {size} bytes instead of {entry.bytes}")
    length = entry.footer if entry else int.from_bytes(file.read(4, size - _TAIL), "little") + _TAIL
    if not _TAIL < length <= min(size, _FOOTER_LIMIT):
        raise Unreadable("it has no footer")
    raw = file.read(length, size - length)
    if entry and (not entry.checksums or zlib.crc32(raw) != entry.checksums[0]):
        raise Unreadable("its footer is damaged")
    rows, columns, facts = call(parse_footer, raw)
    checks = entry.checksums[1:] if entry else (None,) * len(columns)
    if len(checks) != len(columns) or (entry and rows != entry.rows) or rows > _ROWS_LIMIT:
        raise Unreadable("its footer does not fit the manifest")
    for _, offset, packed, unpacked, _ in columns:
        if offset < 4 or packed < 0 or offset + packed > size - length or unpacked > _COLUMN_LIMIT:
            raise Unreadable("its footer claims what the file cannot hold")
    places = tuple(
        ColumnPlace(name, offset, packed, check, constant)
        for (name, offset, packed, _, constant), check in zip(columns, checks, strict=True)
    )
    try:
        grids = tuple(Grid.from_json(data) for data in json.loads(facts)["grids"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable(f"its grids make no sense: {error}") from None
    if grids and sum(grid.shape[0] * grid.shape[1] for grid in grids) != rows:
        raise Unreadable("its grids are of other rows than it has")
    return Footer(raw, size, rows, places, grids, frozenset(place.name for place in places))


def read_columns(
    file: RandomAccess,
    footer: Footer,
    names: Sequence[str],
    call: Isolation = directly,
    *,
    masked: bool = False,
) -> dict[str, Column]:
    """These columns, decoded; null is NaN in reals and 0 in whole numbers, and masked if wanted.

    Raises Unreadable where bytes are missing or changed, KeyError for a column there is not.
    """
    out: dict[str, Column] = {}
    pieces: dict[int, bytes] = {footer.size - len(footer.raw): footer.raw}
    wanted = []
    for name in names:
        places = [place for place in footer.columns if place.name == name]
        if not places:
            raise KeyError(name)
        if len(places) == 1 and places[0].constant is not None:
            out[name] = np.broadcast_to(np.array(places[0].constant), footer.rows)
            continue
        wanted.append(name)
        for place in places:
            raw = file.read(place.size, place.offset)
            if len(raw) != place.size or place.checksum not in (None, zlib.crc32(raw)):
                raise Unreadable(f"its column {name} is damaged")
            pieces[place.offset] = raw
    if wanted:
        out |= call(decoded, footer.size, pieces, wanted, footer.rows, masked)
    return out


def parse_footer(raw: bytes) -> tuple[int, list[tuple[str, int, int, int, int | None]], str]:
    """Rows, columns (name, offset, bytes, unpacked bytes, constant) and our own facts."""
    pa, pq = _pyarrow()
    try:
        metadata = pq.read_metadata(pa.BufferReader(raw))
        facts = (metadata.metadata or {}).get(_KEY, b'{"grids": []}').decode()
        groups = metadata.num_row_groups
        if groups > 1:
            raise Unreadable("it has more than one row group")
        columns = []
        for at in range(metadata.num_columns if groups else 0):
            column = metadata.row_group(0).column(at)
            place = _place(column)
            name, _, inside = column.path_in_schema.partition(".")
            constant = None if inside else _constant(column)  # equal numbers are no equal lists
            columns.append((name, *place, column.total_uncompressed_size, constant))
        return metadata.num_rows, columns, facts
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise Unreadable(f"its footer cannot be read: {error}") from None


def _constant(column: Any) -> int | None:
    """The one number of a column of whole numbers, as its statistics say."""
    numbers = None if "." in column.path_in_schema else column.statistics  # lists have many
    if numbers is None or not numbers.has_min_max or numbers.null_count:
        return None
    low, high = numbers.min, numbers.max
    return low if isinstance(low, int) and not isinstance(low, bool) and low == high else None


def decoded(
    size: int,
    pieces: Mapping[int, bytes],
    names: Sequence[str],
    rows: int,
    masked: bool = False,
) -> dict[str, Column]:
    """Columns of a file of which only these pieces are here: the rest is zeros nobody reads."""
    pa, pq = _pyarrow()
    sparse = np.zeros(size, np.uint8)  # the system gives zeros without touching memory
    for offset, piece in pieces.items():
        sparse[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
    try:
        with pq.ParquetFile(pa.BufferReader(sparse), page_checksum_verification=True) as file:
            table = file.read_row_group(0, columns=list(names), use_threads=False)
        if table.num_rows != rows:
            raise Unreadable("it holds other rows than its footer says")
        return {name: _column(pa, table.column(name).combine_chunks(), masked) for name in names}
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise Unreadable(f"it cannot be decoded: {error}") from None


def _column(pa: Any, array: Any, masked: bool) -> Column:
    if isinstance(array, pa.ChunkedArray):  # what older versions of pyarrow combine to
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return ["" if text is None else text for text in array.to_pylist()]
    if pa.types.is_list(array.type):
        return Lists(_numbers(array.offsets).astype(np.int64), _numbers(array.values))
    values = _numbers(array)
    if not array.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    valid = bits[array.offset : array.offset + len(array)].astype(bool)
    if masked:
        return np.ma.array(values, mask=~valid)
    return np.where(valid, values, values.dtype.type(np.nan if values.dtype.kind == "f" else 0))


def _numbers(array: Any) -> NDArray[Any]:
    """The numbers of an array as they lie in memory: `to_numpy` would import pandas."""
    dtype, buffer = np.dtype(_NUMBERS[str(array.type)]), array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array) + array.offset)[array.offset :]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise GradwatchError(
            "Expected pyarrow to read the sealed files of a run, found none: "
            "`pip install pyarrow`.",
            Exit.UNREADABLE,
        ) from None
    return pa, pq
