"""The order in which the original's sort leaves values that NaN has made unsortable.

It sorts with "NaN is equal to everything", which is no order. Up to 20 values its standard library
inserts one after the other; above, it sorts runs, merges them and panics when a merge does not come
out even. Which of the two happens, and what median comes out, depends on the algorithm, so it is
followed here step by step (Rust's stable sort since 1.81, "driftsort"). Without NaN any sort
will do.
"""

from gradwatch.errors import GradwatchError

_INSERTION = 20
_SMALL = 32
_GOOD_RUN = 64
_RECURSIVE_MEDIAN = 64


def in_order(values: list[float]) -> list[float]:
    """A sorted copy; raises `GradwatchError` where the original panics."""
    if not any(value != value for value in values):
        return sorted(values)
    copy = list(values)
    if len(copy) <= _INSERTION:
        return _inserted(copy, 1)
    return _drift(copy, eager=len(copy) <= 2 * _SMALL)


def _inserted(values: list[float], begin: int) -> list[float]:
    for at in range(begin, len(values)):
        _insert_tail(values, at)
    return values


def _insert_tail(values: list[float], at: int) -> None:
    tail = values[at]
    while at > 0 and tail < values[at - 1]:
        values[at] = values[at - 1]
        at -= 1
    values[at] = tail


def _drift(values: list[float], eager: bool) -> list[float]:
    """Runs are found or made from the left and merged by the depth of a fixed binary tree."""
    length = len(values)
    good = min(length - length // 2, _GOOD_RUN) if length <= _GOOD_RUN**2 else _rough_root(length)
    stack: list[tuple[int, int, bool]] = []  # (begin, desired depth, sorted)
    at, begin, is_sorted = 0, 0, True
    while True:
        size, next_sorted, depth = 0, True, 0
        if at < length:
            size, next_sorted = _make_run(values, at, good, eager)
            depth = _depth(begin, at, at + size, length)
        while len(stack) > 1 and stack[-1][1] >= depth:
            left, _, left_sorted = stack.pop()
            is_sorted = _merge_runs(values, (left, begin, at), left_sorted, is_sorted)
            begin = left
        stack.append((begin, depth, is_sorted))
        if at >= length:
            break
        begin, is_sorted = at, next_sorted
        at += size
    return values if is_sorted else _quick(values, None, _limit(length))


def _make_run(values: list[float], at: int, good: int, eager: bool) -> tuple[int, bool]:
    rest = len(values) - at
    if rest >= good:
        size, falling = _existing_run(values, at)
        if size >= good:
            if falling:
                values[at : at + size] = values[at : at + size][::-1]
            return size, True
    if eager:
        size = min(_SMALL, rest)
        values[at : at + size] = _quick(values[at : at + size], None, 0)
        return size, True
    return min(good, rest), False


def _existing_run(values: list[float], at: int) -> tuple[int, bool]:
    rest = len(values) - at
    if rest < 2:
        return rest, False
    falling = values[at + 1] < values[at]
    size = 2
    while size < rest and (values[at + size] < values[at + size - 1]) == falling:
        size += 1
    return size, falling


def _merge_runs(
    values: list[float], span: tuple[int, int, int], left_sorted: bool, right_sorted: bool
) -> bool:
    """Two unsorted runs stay one unsorted run; otherwise both are sorted and merged."""
    if not left_sorted and not right_sorted:
        return False
    begin, middle, end = span
    left, right = values[begin:middle], values[middle:end]
    left = left if left_sorted else _quick(left, None, _limit(len(left)))
    right = right if right_sorted else _quick(right, None, _limit(len(right)))
    values[begin:end] = _merged(left, right)
    return True


def _merged(left: list[float], right: list[float]) -> list[float]:
    """Forwards if the left run is not longer, else backwards: with NaN that is not the same."""
    if not left or not right:
        return left + right
    out: list[float] = []
    if len(left) <= len(right):
        i = j = 0
        while i < len(left) and j < len(right):
            if right[j] < left[i]:
                out.append(right[j])
                j += 1
            else:
                out.append(left[i])
                i += 1
        return out + left[i:] + right[j:]
    i, j = len(left), len(right)
    while i and j:
        if right[j - 1] < left[i - 1]:
            out.append(left[i - 1])
            i -= 1
        else:
            out.append(right[j - 1])
            j -= 1
    return left[:i] + right[:j] + out[::-1]


def _quick(values: list[float], ancestor: float | None, limit: int) -> list[float]:
    if len(values) <= _SMALL:
        return _small(values)
    if limit == 0:
        return _drift(values, eager=True)
    pivot_at = _pivot(values)
    pivot = values[pivot_at]
    equal = ancestor is not None and not ancestor < pivot
    if not equal:
        left = [x for i, x in enumerate(values) if i != pivot_at and x < pivot]
        right = [x for i, x in enumerate(values) if i == pivot_at or not x < pivot]
        if left:
            return _quick(left, ancestor, limit - 1) + _quick(right, pivot, limit - 1)
    same = [x for i, x in enumerate(values) if i == pivot_at or not pivot < x]
    above = [x for i, x in enumerate(values) if i != pivot_at and pivot < x]
    return same + _quick(above, None, limit - 1)


def _pivot(values: list[float]) -> int:
    eighth = len(values) // 8
    a, b, c = 0, eighth * 4, eighth * 7
    if len(values) < _RECURSIVE_MEDIAN:
        return _median3(values, a, b, c)
    return _median_of_medians(values, (a, b, c), eighth)


def _median_of_medians(values: list[float], at: tuple[int, int, int], n: int) -> int:
    if n * 8 >= _RECURSIVE_MEDIAN:
        m = n // 8
        a, b, c = (_median_of_medians(values, (x, x + m * 4, x + m * 7), m) for x in at)
        return _median3(values, a, b, c)
    return _median3(values, *at)


def _median3(values: list[float], a: int, b: int, c: int) -> int:
    x = values[a] < values[b]
    y = values[a] < values[c]
    if x != y:
        return a
    return c if (values[b] < values[c]) != x else b


def _small(values: list[float]) -> list[float]:
    """Two halves, their first 8 (or 4, or 1) by network, the rest inserted, then one merge."""
    length = len(values)
    if length < 2:
        return values
    half = length // 2
    halves = [values[:half], values[half:]]
    for part in halves:
        if length >= 16:
            part[:8] = _merged_evenly(_four(part[:4]) + _four(part[4:8]))
            begin = 8
        elif length >= 8:
            part[:4] = _four(part[:4])
            begin = 4
        else:
            begin = 1
        _inserted(part, begin)
    return _merged_evenly(halves[0] + halves[1])


def _four(v: list[float]) -> list[float]:
    """The branchless network of five comparisons for four values."""
    c1, c2 = v[1] < v[0], v[3] < v[2]
    a, b = (v[1], v[0]) if c1 else (v[0], v[1])
    c, d = (v[3], v[2]) if c2 else (v[2], v[3])
    c3, c4 = c < a, d < b
    low = c if c3 else a
    high = b if c4 else d
    left = a if c3 else c if c4 else b
    right = d if c4 else b if c3 else c
    if right < left:
        left, right = right, left
    return [low, left, right, high]


def _merged_evenly(values: list[float]) -> list[float]:
    """Merge the two halves from both ends at once; if the ends do not meet, the original panics."""
    length = len(values)
    half = length // 2
    out = [0.0] * length
    left, right, left_end, right_end = 0, half, half - 1, length - 1
    for at in range(half):
        if not values[right] < values[left]:
            out[at] = values[left]
            left += 1
        else:
            out[at] = values[right]
            right += 1
        if not values[right_end] < values[left_end]:
            out[length - 1 - at] = values[right_end]
            right_end -= 1
        else:
            out[length - 1 - at] = values[left_end]
            left_end -= 1
    if length % 2:
        take_left = left < left_end + 1
        out[half] = values[left] if take_left else values[right]
        left, right = left + take_left, right + (not take_left)
    if left != left_end + 1 or right != right_end + 1:
        raise GradwatchError(
            f"The original panics here: it sorts {length} values among which there is NaN with a "
            "comparison that is no order. Use rules='gradwatch', which counts NaN apart."
        )
    return out


def _depth(begin: int, middle: int, end: int, length: int) -> int:
    scale = ((1 << 62) + length - 1) // length
    return 64 - (((begin + middle) * scale) ^ ((middle + end) * scale)).bit_length()


def _limit(length: int) -> int:
    return 2 * ((length | 1).bit_length() - 1)


def _rough_root(length: int) -> int:
    shift = (length.bit_length()) // 2
    return ((1 << shift) + (length >> shift)) // 2
