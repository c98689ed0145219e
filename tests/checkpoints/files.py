"""Checkpoint files made by hand, byte by byte, healthy and hostile."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CODES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    """A file with this header (an object or raw bytes) and these data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]]) -> Path:
    """`{name: (type, array with the elements' bits)}`, one after another."""
    header, data = {}, b""
    for name, (kind, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": CODES[kind],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    path.write_bytes(safetensors_bytes(header, data))
    return path


def floats(path: Path, **arrays: np.ndarray) -> Path:
    """A safetensors file of float32 arrays; `__` in a name stands for a dot."""
    table = {
        name.replace("__", "."): ("float32", np.asarray(array, np.float32))
        for name, array in arrays.items()
    }
    return write_safetensors(path, table)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32: bits of bfloat16, rounded towards zero."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def zip_bytes(
    members: Sequence[tuple[str, bytes]],
    *,
    method: int = 0,
    crcs: Mapping[str, int] | None = None,
    local_names: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    comment: bytes = b"",
) -> bytes:
    """A zip archive, with lies where asked for."""
    body, directory = bytearray(), bytearray()
    for name, data in members:
        crc = (crcs or {}).get(name, zlib.crc32(data))
        packed = data
        if method:
            machine = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = machine.compress(data) + machine.flush()
        size = (sizes or {}).get(name, len(data))
        stored = size if method == 0 else len(packed)
        local = (local_names or {}).get(name, name).encode()
        offset = len(body)
        body += struct.pack(
            "<4s5H3I2H", b"PK\3\4", 20, 0, method, 0, 0, crc, stored, size, len(local), 0
        )
        body += local + packed
        directory += struct.pack(
            "<4s6H3I5H2I",
            b"PK\1\2", 20, 20, 0, method, 0, 0, crc, stored, size, len(name.encode()),
            0, 0, 0, 0, 0, offset,
        )  # fmt: skip
        directory += name.encode()
    end = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0
    )
    return bytes(body + directory) + end + comment


def torch_zip(pickle: bytes, storages: Mapping[str, bytes] | None = None, **lies: Any) -> bytes:
    """What `torch.save` writes, with this pickle."""
    members = [("archive/data.pkl", pickle), ("archive/byteorder", b"little")]
    members += [(f"archive/data/{key}", data) for key, data in (storages or {}).items()]
    return zip_bytes([*members, ("archive/version", b"3\n")], **lies)


def text(word: str) -> bytes:
    """BINUNICODE."""
    raw = word.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value: int) -> bytes:
    """LONG1, any size up to 255 bytes."""
    raw = value.to_bytes(max(1, value.bit_length() // 8 + 1), "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def integers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(integer(value) for value in values) + b"t"


def tensor_pickle(
    shape: Sequence[int],
    strides: Sequence[int],
    *,
    offset: int = 0,
    count: int = 4,
    storage: str = "FloatStorage",
    key: str = "0",
    name: str = "weight",
) -> bytes:
    """The pickle of `{name: tensor}`."""
    return (
        b"\x80\x02}(" + text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu")
        + integer(count) + b"tQ" + integer(offset) + integers(shape) + integers(strides)
        + b"\x89ccollections\nOrderedDict\n)RtRu."
    )  # fmt: skip
