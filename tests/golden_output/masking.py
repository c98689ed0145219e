"""What is kept of an answer: times, sizes, paths and versions masked, long tables summed up."""

import base64
import binascii
import hashlib
import json
import math
import re
import zlib
from pathlib import Path
from typing import Any

FEW, LONGEST = 2, 16
"""More objects than this are kept by column; longer lists as a summary."""
ABSENT = "<no such key>"
DIGITS = 7
TOLERANCE = 1e-4
"""How far numbers may differ in JSON: processors add in different orders."""
TINY = 1e-12

_TEXT = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "<time>"),
    (r"\b\d[\d.,]* (?:B|kB|MB|GB)\b", "<size>"),
    (r"Recording took [^.]*(?:\.\d[^.]*)* of the run's time\.", "Recording took <cost>."),
    (r"Writing took [^%]* % of a processor", "Writing took <cost> of a processor"),
    (r"gradwatch, version \S+", "gradwatch, version <version>"),
    (r"events\.out\.tfevents\.[\w.-]+", "events.out.tfevents.<name>"),
]
_MASKED = {
    "created": "<time>",
    "wall": "<time>",
    "begun": "<time>",
    "bytes": "<size>",
    "id": "<id>",
    "overhead": "<cost>",
    "overhead_after_allowance": "<cost>",
    "spent": "<cost>",
    "background": "<cost>",
    "background_seconds": "<cost>",
    "cost": "<cost>",
    "versions": "<versions>",
    "step_ms": "<time>",
    "step_seconds": "<time>",
    "modified": "<time>",
}
_HASHES = "weight_hash"
"""Of bits, the last of which differ from one processor to the next."""
_UNEVEN = ("gradwatch runs", "--ranks")
"""Commands whose columns are as wide as what is masked in them."""


def masked_text(text: str, folder: Path) -> str:
    """The text without what differs from one making to the next."""
    text = text.replace(str(folder), "<folder>")
    if any(word in text.partition("\n")[0] for word in _UNEVEN):
        text = re.sub(r" {2,}", "  ", re.sub(r" +$", "", text, flags=re.M))
        text = re.sub(r"(?m)^(\s*\d+\s+\d+ .*?)\s+[\d.]+(?: *slow)?$", r"\1  <ms>", text)
    for pattern, mask in _TEXT:
        text = re.sub(pattern, mask, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def masked_data(value: Any, folder: Path) -> Any:
    """The data without what differs from one making to the next."""
    if isinstance(value, str):
        return masked_text(value, folder).removesuffix("\n") if value else value
    if isinstance(value, list):
        return [masked_data(item, folder) for item in value if item != "slow"]
    if isinstance(value, dict):
        if value.get("name") in ("step_ms", "step_seconds"):
            return {
                key: item if key in ("name", "title") else "<time>" for key, item in value.items()
            }
        return {
            # a cost that rounds to nothing on one machine does not on another
            key: _MASKED[key]
            if key in _MASKED and (item or isinstance(item, float))
            else masked_data(_without_hashes(item) if key == _HASHES else item, folder)
            for key, item in value.items()
        }
    return value


def _without_hashes(series: Any) -> Any:
    return series | {"values": "<hashes>"} if isinstance(series, dict) else "<hashes>"


def compact(value: Any) -> Any:
    """Rows of a table by column, long lists of numbers and packed cells as summaries."""
    if isinstance(value, dict):
        rows = list(value.values())
        if len(rows) > FEW and _are_rows(rows):
            return {"rows": list(value), "columns": _columns(rows)}
        return {key: compact(item) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > FEW and _are_rows(value):
            return {"rows": len(value), "columns": _columns(value)}
        return _list(value)
    if isinstance(value, str) and len(value) > 60 and " " not in value:
        cells = _unpacked(value)
        return value if cells is None else {"packed": _summary(list(cells))}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _are_rows(values: list[Any]) -> bool:
    """Whether these are objects that have most of their keys in common."""
    if not all(isinstance(value, dict) and value for value in values):
        return False
    return len(_keys(values)) * len(values) <= 2 * sum(len(value) for value in values)


def _keys(rows: list[Any]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _columns(rows: list[Any]) -> dict[str, Any]:
    columns = {key: [row.get(key, ABSENT) for row in rows] for key in _keys(rows)}
    return {
        key: _columns(column) if _are_rows(column) else _list(column)
        for key, column in columns.items()
    }


def _list(values: list[Any]) -> Any:
    """A list as it is where it is short, else what its numbers and its words come to."""
    flat = [inner for value in values for inner in (value if isinstance(value, list) else [value])]
    if len(flat) <= LONGEST or any(isinstance(value, dict) for value in flat):
        return [compact(value) for value in values]
    if any(isinstance(value, list) for value in flat):
        lengths = [len(value) if isinstance(value, list) else -1 for value in values]
        return {"lists": _list(lengths), "flat": _list(flat)}
    numbers = [value for value in flat if _is_number(value)]
    others = [value for value in flat if not _is_number(value)]
    found: dict[str, Any] = {"length": len(values)}
    if len(flat) != len(values):
        found["lengths"] = _list(
            [len(value) if isinstance(value, list) else -1 for value in values]
        )
    if numbers:
        found.update(_summary(numbers))
    if others:
        found.update({"words": len(others), "first": others[:2], "sha256": _hash(others)})
    return found


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _summary(values: list[Any]) -> dict[str, Any]:
    """Enough to notice a changed number, a changed order and a number that is missing."""
    there = [float(value) for value in values if value is not None and math.isfinite(value)]
    sizes = [abs(value) for value in there]
    places = [place * size for place, size in enumerate(sizes, 1)]
    return {
        "numbers": len(values),
        "finite": len(there),
        "head": [compact(value) for value in values[:4]],
        "last": compact(values[-1]),
        **{
            name: float(f"{number:.{DIGITS}g}")
            for name, number in (
                ("least", min(there, default=0.0)),
                ("most", max(there, default=0.0)),
                ("sizes", math.fsum(sizes)),
                ("order", math.fsum(places)),
            )
        },
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _unpacked(word: str) -> bytes | None:
    """Cells of a map: base64 of a deflated table of bytes."""
    try:
        return zlib.decompress(base64.b64decode(word, validate=True), -15)
    except (binascii.Error, zlib.error):
        return None


def written(value: Any, indent: int = 0) -> str:
    """JSON in which what fits into a line stands in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= 110 or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        inside = [
            f"{json.dumps(key, ensure_ascii=False)}: {written(item, indent + 1)}"
            for key, item in value.items()
        ]
    else:
        inside = [written(item, indent + 1) for item in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{pad}" + f",\n{pad}".join(inside) + f"\n{' ' * indent}{end}"


def differences(kept: Any, now: Any, where: str = "") -> list[str]:
    """Places where two JSON values differ: structure and words exactly, numbers nearly."""
    if isinstance(kept, dict) and isinstance(now, dict):
        if list(kept) != list(now):
            gone = [key for key in kept if key not in now]
            new = [key for key in now if key not in kept]
            return [f"{where}: keys gone {gone}, new {new}, or in another order"]
        return [line for key in kept for line in differences(kept[key], now[key], f"{where}.{key}")]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        pairs = enumerate(zip(kept, now, strict=True))
        return [line for at, (a, b) in pairs for line in differences(a, b, f"{where}[{at}]")]
    if isinstance(kept, float) and isinstance(now, int | float) and not isinstance(now, bool):
        if math.isclose(kept, now, rel_tol=TOLERANCE, abs_tol=TINY):
            return []
    elif type(kept) is type(now) and kept == now:
        return []
    return [f"{where}: was {_short(kept)}, is {_short(now)}"]


def _short(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 160 else f"{line[:160]}…"
