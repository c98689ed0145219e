"""Decoding by pyarrow: what a sealed file's bytes are given to, here or in a process of its own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store.tables import UNPACKED_LIMIT, Column, Lists, Unreadable, Words


def pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet; a sentence where it is not installed."""
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


def _short(error: Exception) -> str:
    """What pyarrow says may be long, and holds words of the file."""
    return "".join(letter for letter in str(error)[:160] if letter.isprintable())


def decoded(
    footer: bytes,
    size: int,
    pieces: Mapping[int, bytes],
    kinds: Mapping[str, str],
    rows: int,
    masked: bool = False,
) -> dict[str, Column]:
    """Columns of a file of which only these pieces are here: the rest is zeros nobody reads."""
    pa, pq = pyarrow()
    try:
        sparse = np.zeros(size, np.uint8)  # the system gives zeros without touching memory
        for offset, piece in (*pieces.items(), (size - len(footer), footer)):
            sparse[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        with pq.ParquetFile(
            pa.BufferReader(sparse),
            read_dictionary=[name for name, kind in kinds.items() if kind == "text"],
            pre_buffer=False,  # it would use threads
            page_checksum_verification=True,
        ) as file:
            table = file.read_row_group(0, columns=list(kinds), use_threads=False)
        if table.num_rows != rows:
            raise Unreadable("it holds other rows than its footer says")
        return {name: _column(pa, table.column(name), kind, masked) for name, kind in kinds.items()}
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise Unreadable(f"it cannot be decoded: {_short(error)}") from None


def _column(pa: Any, chunks: Any, kind: str, masked: bool) -> Column:
    if kind == "text":
        return _texts(pa, chunks)
    array = chunks.chunk(0) if chunks.num_chunks == 1 else pa.concat_arrays(chunks.chunks)
    if not pa.types.is_list(array.type):
        values, valid = _numbers(pa, array, kind)
        if valid is None or masked:
            return values if valid is None else np.ma.array(values, mask=~valid)
        return np.where(valid, values, np.dtype(kind).type(np.nan if kind[0] == "f" else 0))
    values, valid = _numbers(pa, array.values, kind)
    if valid is not None:
        raise Unreadable("its lists have holes")
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    return Lists(offsets.astype(np.int64), values)


def _texts(pa: Any, chunks: Any) -> Words:
    """A text that comes a million times stays one text."""
    numbers, words = [np.empty(0, np.int32)], [""]
    for chunk in chunks.chunks:
        codes, valid = _numbers(pa, chunk.indices, "i4")
        known = codes if valid is None else codes[valid]
        if known.min(initial=0) < 0 or known.max(initial=-1) >= len(chunk.dictionary):
            raise Unreadable("its texts are not among its words")  # nobody else looks
        codes = codes + np.int32(len(words))
        numbers.append(codes if valid is None else np.where(valid, codes, 0))
        words += chunk.dictionary.to_pylist()
    found = Words(np.concatenate(numbers), words)
    if found.letters > UNPACKED_LIMIT:
        raise Unreadable("its texts are longer than those of any run")
    return found


def _numbers(pa: Any, array: Any, kind: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The numbers, and which of them there are if not all; pyarrow's own ways import more of it."""
    if array.type != pa.from_numpy_dtype(np.dtype(kind)):
        raise Unreadable(f"it has {array.type} where its footer says {kind}")
    present, raw = array.buffers()
    part = slice(array.offset, array.offset + len(array))
    values = np.frombuffer(raw, kind)[part] if raw is not None else np.empty(0, kind)
    if not array.null_count:
        return values, None
    bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")
    return values, bits[part].astype(bool)
