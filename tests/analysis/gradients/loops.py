"""The same quantities by plain loops over lists; imports nothing of ours and no numpy."""

import math


def moments(x: list[float], *, ddof: int = 0) -> tuple[float, float, float, float]:
    n = len(x)
    mean = math.fsum(x) / n
    m2 = math.fsum((v - mean) ** 2 for v in x) / (n - ddof)
    std = math.sqrt(m2)
    skew = math.fsum(((v - mean) / std) ** 3 for v in x) / n
    kurt = math.fsum(((v - mean) / std) ** 4 for v in x) / n - 3
    return mean, std, skew, kurt


def percentile(x: list[float], q: float) -> float:
    s = sorted(x)
    h = q * (len(s) - 1)
    low = math.floor(h)
    high = min(low + 1, len(s) - 1)
    return s[low] + (h - low) * (s[high] - s[low])


def kendall(x: list[float]) -> float:
    """τ_b against the index."""
    n, score, ties = len(x), 0, 0
    for i in range(n):
        for j in range(i + 1, n):
            score += (x[j] > x[i]) - (x[j] < x[i])
            ties += x[j] == x[i]
    pairs = n * (n - 1) / 2
    return score / math.sqrt(pairs * (pairs - ties))


def turning_points(x: list[float]) -> int:
    return sum((x[i] - x[i - 1]) * (x[i + 1] - x[i]) < 0 for i in range(1, len(x) - 1))


def residual_spread(steps: list[int], y: list[float]) -> float:
    n = len(y)
    t, v = math.fsum(steps) / n, math.fsum(y) / n
    across = math.fsum((s - t) ** 2 for s in steps)
    slope = math.fsum((s - t) * (w - v) for s, w in zip(steps, y, strict=True)) / across
    rest = [w - v - slope * (s - t) for s, w in zip(steps, y, strict=True)]
    return math.sqrt(math.fsum(r * r for r in rest) / n)


def correlation(a: list[float], b: list[float]) -> float:
    ma, mb = math.fsum(a) / len(a), math.fsum(b) / len(b)
    ab = math.fsum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    aa, bb = math.fsum((x - ma) ** 2 for x in a), math.fsum((y - mb) ** 2 for y in b)
    return ab / math.sqrt(aa * bb)


def residuals(columns: list[list[float]], y: list[float]) -> list[float]:
    """Of least squares: the normal equations by elimination with pivots."""
    k = len(columns)
    rows = [
        [math.fsum(p * q for p, q in zip(a, b, strict=True)) for b in [*columns, y]]
        for a in columns
    ]
    for i in range(k):
        pivot = max(range(i, k), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for row in range(k):
            if row != i:
                factor = rows[row][i] / rows[i][i]
                rows[row] = [v - factor * w for v, w in zip(rows[row], rows[i], strict=True)]
    weights = [rows[i][k] / rows[i][i] for i in range(k)]
    return [
        v - math.fsum(w * column[t] for w, column in zip(weights, columns, strict=True))
        for t, v in enumerate(y)
    ]


def innovations(x: list[float]) -> list[float]:
    """Without its cubic, less what the two samples before foretell; robust units, cut at 3."""
    time = [2 * i / (len(x) - 1) - 1 for i in range(len(x))]
    rest = residuals([[t**power for t in time] for power in range(4)], x)
    now, before, earlier = rest[2:], rest[1:-1], rest[:-2]
    fresh = residuals([[1.0] * len(now), before, earlier], now)
    usual = 1.4826 * percentile([abs(v) for v in fresh], 0.5)
    return [min(max(v / usual, -3.0), 3.0) for v in fresh]


def raw_correlation(a: list[float], b: list[float]) -> float:
    """About zero, not about the means."""
    ab, aa, bb = (
        math.fsum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((a, b), (a, a), (b, b))
    )
    return ab / math.sqrt(aa * bb)
