"""safetensors: eight bytes of length, a JSON header, then the bytes of the tensors."""

from typing import Any

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import Index, Shard, TensorEntry, row_major
from gradwatch.checkpoints.limits import MAX_HEADER, MAX_TENSORS
from gradwatch.checkpoints.readers.claims import checked_name, checked_shape, in_order
from gradwatch.checkpoints.readers.files import OpenFile, parse_json
from gradwatch.errors import GradwatchError

_ELEMENTS = {
    "F64": Element.FLOAT64,
    "F32": Element.FLOAT32,
    "BF16": Element.BFLOAT16,
    "F16": Element.FLOAT16,
    "F8_E4M3": Element.FLOAT8_E4M3FN,
    "F8_E5M2": Element.FLOAT8_E5M2,
    "I64": Element.INT64,
    "I32": Element.INT32,
    "I16": Element.INT16,
    "I8": Element.INT8,
    "U64": Element.UINT64,
    "U32": Element.UINT32,
    "U16": Element.UINT16,
    "U8": Element.UINT8,
    "BOOL": Element.BOOL,
}


def looks_like(file: OpenFile) -> bool:
    """Whether the first bytes are a header's length and its opening brace."""
    head = file.head(9)
    return len(head) == 9 and head[8:] == b"{" and 2 <= _length(head) <= file.size - 8


def read(file: OpenFile) -> Index:
    """The index of one file."""
    length = _length(file.read(0, 8))
    if length > MAX_HEADER or length > file.size - 8:
        raise GradwatchError(
            f"{file.path} announces a header of {length} bytes; it has {file.size} bytes, "
            f"and at most {MAX_HEADER} are read as a header. It is damaged or no safetensors file."
        )
    header = parse_json(file.read(8, length), f"The header of {file.path}")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise GradwatchError(
            f"{file.path} lists {len(header)} tensors; at most {MAX_TENSORS} are read."
        )
    data = 8 + length
    spans = {name: _span(name, entry, file.path) for name, entry in header.items()}
    _must_fill(file.size - data, sorted(spans.values()), file.path)
    tensors: dict[str, TensorEntry] = {}
    left_out: dict[str, str] = {}
    for name, entry in header.items():
        element = _ELEMENTS.get(entry["dtype"])
        if element is None:
            left_out[name] = f"elements of type {entry['dtype'][:20]!r} are not measured"
            continue
        shape = checked_shape(entry["shape"], name, file.path)
        begin, end = spans[name]
        shard = Shard(0, data + begin, shape, row_major(shape), (0,) * len(shape))
        if shard.count * element.size != end - begin:
            raise GradwatchError(
                f"{file.path}: tensor {name[:80]!r} of shape {list(shape)} and type {element} "
                f"needs {shard.count * element.size} bytes, but the header gives it {end - begin}."
            )
        tensors[name] = TensorEntry(name, shape, element, (shard,))
    ordered = tuple(tensors[name] for name in in_order(tensors))
    return Index(file.path, "safetensors", (file.identity,), ordered, left_out=left_out)


def _length(head: bytes) -> int:
    return int.from_bytes(head[:8], "little")


def _span(name: str, entry: Any, path: str) -> tuple[int, int]:
    """From which byte of the data to which the tensor goes."""
    checked_name(name, path)
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(value) is int and 0 <= value < 1 << 62 for value in offsets)
        or offsets[1] < offsets[0]
        or not isinstance(entry.get("dtype"), str)
        or "shape" not in entry
    ):
        raise GradwatchError(f"{path}: the header's entry of {name[:80]!r} is not usable.")
    return offsets[0], offsets[1]


def _must_fill(size: int, spans: list[tuple[int, int]], path: str) -> None:
    """The tensors must lie side by side and fill the file: no overlap, no hole, nothing behind."""
    edges = [0, *(edge for span in spans for edge in span), size]
    for end, begin in zip(edges[0::2], edges[1::2], strict=True):
        if end != begin:
            what = "overlap" if begin < end else "leave a hole between them or after them"
            if begin == size:
                what = "do not fill the file" if end < size else "reach past the end of the file"
            raise GradwatchError(
                f"{path}: the tensors {what} (byte {end} of the data against {begin}); "
                "the file is damaged, cut short or not made by safetensors."
            )
