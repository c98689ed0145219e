"""References: plain loops over lists, importing nothing of ours; `wrong` plants an error."""

import math
from collections.abc import Sequence


def finite(values: Sequence[float]) -> list[float]:
    return [x for x in values if not math.isnan(x) and not math.isinf(x)]


def mean(values: Sequence[float]) -> float:
    total = 0.0
    for x in values:
        total += x
    return total / len(values)


def central(values: Sequence[float], power: int) -> float:
    centre, total = mean(values), 0.0
    for x in values:
        total += (x - centre) ** power
    return total


def std(values: Sequence[float], wrong: str | None = None) -> float:
    return math.sqrt(central(values, 2) / (len(values) - (1 if wrong == "ddof" else 0)))


def skewness(values: Sequence[float], wrong: str | None = None) -> float:
    return central(values, 3) / len(values) / std(values, wrong) ** 3


def kurtosis(values: Sequence[float], wrong: str | None = None) -> float:
    return central(values, 4) / len(values) / std(values, wrong) ** 4 - (
        0.0 if wrong == "not excess" else 3.0
    )


def norm(values: Sequence[float]) -> float:
    total = 0.0
    for x in values:
        total += x * x
    return math.sqrt(total)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours (type 7)."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def robust_z(values: Sequence[float], wrong: str | None = None) -> list[float]:
    """0.6745 (x − median) / MAD; the wrong one takes mean and std that include the value."""
    if wrong == "self-including":
        return [(x - mean(values)) / std(values) for x in values]
    centre = quantile(values, 0.5)
    mad = quantile([abs(x - centre) for x in values], 0.5)
    return [0.6744897501960817 * (x - centre) / mad for x in values]


def cell_width(values: Sequence[float]) -> float:
    """Freedman–Diaconis, down to a power of two, at most 256 cells."""
    wide = 2.0 * (quantile(values, 0.75) - quantile(values, 0.25)) / len(values) ** (1 / 3)
    least = 2.0 ** math.ceil(math.log2((max(values) - min(values)) / 254))
    return max(2.0 ** math.floor(math.log2(wide)), least) if wide > 0 else least


def entropy(values: Sequence[float], width: float, wrong: str | None = None) -> float:
    """Bits of the histogram on multiples of `width`, with the Miller–Madow term."""
    cells: dict[int, int] = {}
    for x in values:
        cell = math.floor(x / width)
        cells[cell] = cells.get(cell, 0) + 1
    bits = 0.0
    for count in cells.values():
        share = count / len(values)
        bits -= share * (math.log(share) if wrong == "nats" else math.log2(share))
    if wrong != "no bias term":
        bits += (len(cells) - 1) / (2 * len(values) * math.log(2))
    return min(bits, math.log2(max(cells) - min(cells) + 1))


def drift(
    before: Sequence[float], after: Sequence[float], wrong: str | None = None
) -> dict[str, float]:
    """Relative change, cosine, sign flips, changed share, sparsity change."""
    if wrong == "reversed time":
        before, after = after, before
    apart = norm([b - a for a, b in zip(before, after, strict=True)])
    product = sum(a * b for a, b in zip(before, after, strict=True))
    flips = sum(1 for a, b in zip(before, after, strict=True) if a * b < 0)
    changed = sum(1 for a, b in zip(before, after, strict=True) if a != b)
    n = len(before)
    return {
        "relative_change": apart / norm(before),
        "cosine": product / norm(before) / norm(after),
        "sign_flip_fraction": flips / n,
        "changed_fraction": changed / n,
        "sparsity_change": (after.count(0.0) - before.count(0.0)) / n,
    }
