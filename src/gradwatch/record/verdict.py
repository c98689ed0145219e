"""What happened to the gradients between the end of backward and the optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[np.floating], NDArray[np.floating], float]
"""A sample at the end of backward, the same coordinates now, and the type's epsilon."""

TOLERANCE = 1e-5


class Phase(Enum):
    """How the gradient the optimizer gets relates to the one backward made."""

    RAW = "raw"
    SCALED = "scaled"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """`factor` is gradient now ÷ gradient at the end of backward; 1 where nothing is known."""

    phase: Phase
    factor: float = 1.0
    exact: bool = True
    """The factor is a power of two and holds to the bit: what removing a loss scale looks like."""

    @property
    def undoable(self) -> bool:
        """Whether the raw gradient can be computed from what is in memory."""
        return self.phase is not Phase.CHANGED

    def unscaled(self, scale: float) -> "Verdict":
        """The same with a loss scale taken out that was removed after backward."""
        factor = self.factor * scale
        if self.phase is not Phase.SCALED:
            return self
        return RAW if abs(factor - 1.0) < TOLERANCE else replace(self, factor=factor)


RAW = Verdict(Phase.RAW)
UNKNOWN = Verdict(Phase.UNKNOWN)
CHANGED = Verdict(Phase.CHANGED, exact=False)


def judge(pairs: Sequence[Pair]) -> Verdict:
    """Equal: raw. Proportional, by one factor everywhere: scaled. Otherwise changed."""
    if all(np.array_equal(was, now, equal_nan=True) for was, now, _ in pairs):
        return RAW
    factors, tolerances, exact = [], [], True
    for was, now, epsilon in pairs:
        finite = np.isfinite(was) & np.isfinite(now)
        before = was[finite].astype(np.float64)
        after = now[finite].astype(np.float64)
        square = float(before @ before)
        if square == 0.0:
            if after.any():
                return CHANGED
            continue
        factor = float(before @ after) / square
        tolerance = max(TOLERANCE, 2.0 * epsilon)
        rest = float(np.linalg.norm(after - factor * before))
        if factor <= 0.0 or rest > tolerance * float(np.linalg.norm(after)):
            return CHANGED
        factors.append(factor)
        tolerances.append(tolerance)
        exact = exact and _is_power_of_two(factor) and np.array_equal(after, factor * before)
    if not factors:
        return UNKNOWN
    if max(factors) / min(factors) - 1.0 > max(tolerances):
        return CHANGED
    return Verdict(Phase.SCALED, float(np.median(factors)), exact)


def _is_power_of_two(value: float) -> bool:
    return bool(np.frexp(value)[0] == 0.5)
