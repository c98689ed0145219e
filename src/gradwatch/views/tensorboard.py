"""Event files that TensorBoard reads: scalars and histograms, written without TensorBoard.

An event file is a list of records, each with its length and two masked CRC-32C sums; a record holds
one `Event` message of tensorflow/core/util/event.proto. The few fields needed are encoded here.
"""

import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_whole
from gradwatch.run import Histogram, Run
from gradwatch.stats import Family, Stat

STATS = (Stat.GRAD_NORM, Stat.WEIGHT_NORM, Stat.UPDATE_RATIO)
HISTOGRAMS = (Family.GRAD, Family.WEIGHT)


def write_tensorboard(run: Run, folder: Path) -> Path:
    """Write one event file into `folder`; refuses a folder that already holds event files."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*tfevents*")):
        raise GradwatchError(
            f"{folder} already holds event files; name another folder, or remove them.", Exit.USAGE
        )
    # the name must hold "tfevents" for TensorBoard to see it
    path = folder / f"events.out.tfevents.{int(time.time())}.gradwatch"
    write_whole(path, lambda file: file.writelines(map(_record, _events(run))))
    return path


def _events(run: Run) -> Iterator[bytes]:
    yield _double(1, 0.0) + _bytes(3, b"brain.Event:2")
    for name, values in run.scalars.items():
        yield from _scalars(name, run.steps.tolist(), values.tolist())
    for stat in STATS:
        if stat in run.recorded:
            for column, name in enumerate(run.names):
                yield from _scalars(
                    f"{stat}/{name}", run.steps.tolist(), run.series[stat][:, column].tolist()
                )
    for family in HISTOGRAMS:
        for name in run.names:
            yield from _histograms(f"{family}/{name}", run.histograms(family, name))


def _scalars(tag: str, steps: Iterable[int], values: Iterable[float]) -> Iterator[bytes]:
    head = _bytes(1, tag.encode("utf-8", "backslashreplace"))
    for step, value in zip(steps, values, strict=True):
        if value == value:  # NaN here means "not recorded"
            with np.errstate(over="ignore"):
                single = float(np.float32(value))
            yield _event(step, head + _tag(2, 5) + struct.pack("<f", single))


def _histograms(tag: str, by_step: Mapping[int, Histogram]) -> Iterator[bytes]:
    head = _bytes(1, tag.encode("utf-8", "backslashreplace"))
    for step, histogram in by_step.items():
        yield _event(step, head + _bytes(5, _proto(histogram)))


def _proto(histogram: Histogram) -> bytes:
    """Bins by their right edges, from the most negative to the most positive; zeros between."""
    edges, counts = _bins(histogram)
    centres = np.concatenate([[edges[0]], (edges[1:] + edges[:-1]) / 2])
    total = float((counts * centres).sum())
    squares = float((counts * centres**2).sum())
    filled = np.flatnonzero(counts)
    low = edges[max(int(filled[0]) - 1, 0)] if len(filled) else 0.0
    high = edges[int(filled[-1])] if len(filled) else 0.0
    head = b"".join(
        _double(field, value)
        for field, value in enumerate((low, high, float(counts.sum()), total, squares), start=1)
    )
    return (
        head + _bytes(6, edges.astype("<f8").tobytes()) + _bytes(7, counts.astype("<f8").tobytes())
    )


def _bins(histogram: Histogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    exponents = histogram.first_exponent + np.arange(len(histogram.positive))
    size = np.ldexp(1.0, exponents)
    tiny = size[0] if len(size) else 1.0
    edges = np.concatenate([-size[::-1], [tiny / 2], 2 * size])
    # a bin's right edge: −2^e for the negative bins, 2^(e+1) for the positive ones
    counts = np.concatenate(
        [histogram.negative[::-1], [histogram.zeros], histogram.positive]
    ).astype(float)
    return edges, counts


def _event(step: int, value: bytes) -> bytes:
    return _double(1, 0.0) + _tag(2, 0) + _varint(step) + _bytes(5, _bytes(1, value))


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _double(field: int, value: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """CRC-32C, turned and shifted as the format asks, so that sums of sums stay useful."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of the bytes, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    rows = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


_TABLE = _table()
