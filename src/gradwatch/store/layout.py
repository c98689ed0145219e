"""The run folder, format 4: tables, columns, names of files, lines of the log (docs/format.md)."""

import re
import zlib
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gradwatch.jsonio import dumps, loads
from gradwatch.stats import Family, Stat, family_stats

FORMAT = 4
BUCKET = 64
"""Rows of a subject that one coarse row stands for."""
EXTREMES = ("min", "max", "last")
STEPS, SCALARS, LOG = "steps", "scalars", "log.jsonl"
BITS = {family: 1 << at for at, family in enumerate(Family)}
SCALAR_BIT = 1 << 15
"""In the column `families` of the steps: a step that has logged numbers, and perhaps no row."""
WRITER = re.compile(r"([0-9]{1,6})-([0-9]{1,6})-([0-9a-f]{8})")
_PART = re.compile(r"([0-9]{5,9})-(-?[0-9]{1,19})\.(arrows|parquet)")
_KEYS = [("step", pa.int64()), ("subject", pa.uint32()), ("state", pa.uint8())]
_BINS = pa.list_(pa.uint64())


class Part(NamedTuple):
    """One file of a table."""

    number: int
    first_step: int
    finished: bool
    """Parquet, which never changes; else an Arrow stream, which grows."""
    bytes: int = 0
    rows: int = 0

    @property
    def name(self) -> str:
        """The name of its file: `00002-2000.arrows`."""
        return f"{self.number:05d}-{self.first_step}.{'parquet' if self.finished else 'arrows'}"


def parts_of(files: Iterable[tuple[str, int]]) -> list[Part]:
    """The parts among a table's files (name, bytes), in order; of two forms the finished one."""
    found: dict[int, Part] = {}
    for name, size in sorted(files):  # .arrows before .parquet
        if match := _PART.fullmatch(name):
            number = int(match[1])
            found[number] = Part(number, int(match[2]), match[3] == "parquet", size)
    return [found[number] for number in sorted(found)]


def drawn(family: Family) -> list[Stat]:
    """The statistics that coarse rows have: all that have an order, so no hash."""
    return [stat for stat in family_stats(family) if stat is not Stat.WEIGHT_HASH]


@cache
def schemas() -> dict[str, pa.Schema]:
    """The columns of every table while it grows."""
    tables = {
        STEPS: pa.schema([("step", pa.int64()), ("families", pa.uint16())]),
        SCALARS: pa.schema([("step", pa.int64()), ("name", pa.string()), ("value", pa.float64())]),
    }
    for family in Family:
        stats = [
            (str(stat), pa.from_numpy_dtype(np.dtype(stat.dtype))) for stat in family_stats(family)
        ]
        tables[f"rows/{family}"] = pa.schema(_KEYS + stats)
        coarse = [(f"{stat}_{part}", pa.float32()) for stat in drawn(family) for part in EXTREMES]
        keys = [_KEYS[0], ("last_step", pa.int64()), *_KEYS[1:]]
        tables[f"coarse/{family}"] = pa.schema(keys + coarse)
        counts = [(name, pa.uint64()) for name in ("zeros", "nan", "positive_inf", "negative_inf")]
        bins = [("first_exponent", pa.int32()), ("negative", _BINS), ("positive", _BINS)]
        tables[f"histograms/{family}"] = pa.schema(_KEYS[:2] + bins + counts)
    return tables


# -- lines of the log ------------------------------------------------------------------------------

_CRC = b',"crc":"%08x"}\n'
_LENGTH = len(_CRC % 0)


def packed(kind: str, data: Any) -> bytes:
    """A line (subjects, note, graph, event, removed, closed) as the file has it."""
    text = dumps({"kind": kind, "data": data}, ascii_only=True).encode()
    return text[:-1] + _CRC % zlib.crc32(text)


def read_log(raw: bytes) -> tuple[dict[str, list[Any]], int]:
    """What the sound lines of each kind say, and how many lines are damaged.

    A last line without an end is no damage: a kill may cut it.
    """
    found: dict[str, list[Any]] = {}
    damaged = 0
    for line in raw.split(b"\n")[:-1]:
        line += b"\n"
        text = line[:-_LENGTH] + b"}"
        if line[-_LENGTH:] == _CRC % zlib.crc32(text):
            document = loads(text.decode())
            found.setdefault(document["kind"], []).append(document["data"])
        else:
            damaged += 1
    return found, damaged
