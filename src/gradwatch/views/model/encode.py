"""JSON that every strict parser takes, with the same bytes wherever it goes."""

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

READABLE = 1_000_000
"""Characters of JSON up to which a report holds it as it is."""
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def to_json(model: Mapping[str, Any]) -> str:
    """Compact ASCII, in which no character ends a script element: fit for a file and for HTML."""
    return json.dumps(model, separators=(",", ":"), allow_nan=False, ensure_ascii=True).translate(
        _HTML
    )


def for_html(model: Mapping[str, Any]) -> str:
    """The element that holds the model inside a page: data, never executed.

    The tables of thousands of layers deflate to a tenth; smaller models stay readable as they are.
    """
    text = to_json(model)
    if len(text) <= READABLE:
        return f'<script type="application/json" id="model">{text}</script>'
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = base64.b64encode(deflate.compress(text.encode()) + deflate.flush()).decode()
    return f'<script type="text/plain" id="model" data-packed="deflate-raw">{packed}</script>'


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A number as it is shown: six digits; None where there is no finite one."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def numbers(values: NDArray[np.float64], digits: int = 6) -> list[float | None]:
    return [rounded(float(value), digits) for value in values]


def plainly(value: Any) -> Any:
    """Anything from a run's info as plain JSON: NaN becomes null, unknown things their text."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(float(value)) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): plainly(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plainly(item) for item in value]
    return str(value)
