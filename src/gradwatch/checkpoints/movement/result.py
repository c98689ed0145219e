"""What `drift` hands back, and what it finds worth saying."""

import math
from dataclasses import dataclass
from typing import Any

from gradwatch.checkpoints.movement.comparing import Sums
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.stats import Stat

FORMAT = 1


@dataclass(frozen=True)
class TensorDrift:
    """How far one tensor moved."""

    name: str
    name_after: str
    shape: tuple[int, ...]
    dtype_before: str
    dtype_after: str
    sums: Sums
    adapted: bool = False
    """Whether the change comes from an adapter."""

    @property
    def moved(self) -> bool:
        return self.sums.changed > 0

    @property
    def layer(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    def to_dict(self) -> dict[str, Any]:
        sums, count = self.sums, max(self.sums.count, 1)
        return {
            "name": self.name,
            "name_after": self.name_after,
            "shape": list(self.shape),
            "dtype_before": self.dtype_before,
            "dtype_after": self.dtype_after,
            "moved": self.moved,
            "relative_change": sums.relative_change,
            "cosine": sums.cosine,
            "sign_flip_fraction": None if self.adapted else sums.flipped / count,
            "changed_fraction": None if self.adapted else sums.changed / count,
            "zero_fraction_before": None if self.adapted else sums.zeros_before / count,
            "zero_fraction_after": None if self.adapted else sums.zeros_after / count,
            "norm_before": math.sqrt(sums.before),
            "norm_after": math.sqrt(sums.after),
            "nonfinite": sums.bad,
            "adapter": self.adapted,
        }


@dataclass(frozen=True)
class Drift:
    """Two checkpoints compared."""

    before: str
    after: str
    tensors: tuple[TensorDrift, ...]
    renamed: dict[str, str]
    reshaped: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    not_compared: dict[str, str]
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "before": self.before,
            "after": self.after,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "renamed": self.renamed,
            "reshaped": {name: [list(a), list(b)] for name, (a, b) in self.reshaped.items()},
            "missing": list(self.missing),
            "added": list(self.added),
            "not_compared": self.not_compared,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def findings_of(tensors: tuple[TensorDrift, ...]) -> tuple[Finding, ...]:
    """Layers that did not move by a bit while others did; or nothing moved at all."""
    weights = [t for t in tensors if len(t.shape) >= 2 and "float" in t.dtype_before]
    still = [t for t in weights if not t.moved]
    if not still:
        return ()
    everything = not any(t.moved for t in tensors)
    layers = tuple(dict.fromkeys(t.layer for t in still))
    if everything:
        message = f"the two checkpoints are equal: none of {len(tensors)} tensors moved"
        cause = "Nothing was trained between them, or the same file was given twice."
    else:
        message = (
            f"{len(still)} of {len(weights)} weight matrices did not change by a bit, "
            f"the first is {still[0].name}"
        )
        cause = "These layers were frozen, left out of the optimizer, or got no gradient."
    return (
        Finding(
            check="not-updated",
            severity=Severity.CRITICAL if everything else Severity.WARNING,
            layers=layers[:8],
            first_step=0,
            last_step=1,
            message=message,
            evidence=tuple(
                Evidence(Stat.UPDATE_RATIO, t.name, 1, t.sums.relative_change, 0.0)
                for t in still[:8]
            ),
            cause=cause,
            advice=(
                "If they should train: check requires_grad, and that the optimizer has them.",
                "If they are frozen on purpose, all is well.",
            ),
        ),
    )
