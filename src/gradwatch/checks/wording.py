"""Numbers and lists as findings say them."""

import math
from collections.abc import Sequence


def short(value: float) -> str:
    """Three significant digits."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if 1e-2 <= size < 1e4:
        return f"{value:.3g}" if size < 1000 else f"{value:.0f}"
    return f"{value:.1e}"


def share(fraction: float) -> str:
    """A fraction as whole per cent; the ends only when really reached."""
    percent = 100 * fraction
    if 0 < percent < 1:
        return "under 1 %"
    if 99 < percent < 100:
        return "over 99 %"
    return f"{percent:.0f} %"


def several(layers: Sequence[str], shown: int = 2) -> str:
    """`a`, `a and b`, `a, b and 3 more`."""
    names = [layer or "the model itself" for layer in layers]
    if len(names) <= 1:
        return names[0] if names else "the whole network"
    if len(names) <= shown:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"
