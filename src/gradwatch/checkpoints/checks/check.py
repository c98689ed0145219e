"""The form of a check of weights, and how all of them make their findings."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradwatch.checkpoints.index import TensorEntry
from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.finding import Evidence, Finding, Severity, Skipped
from gradwatch.stats import Stat

Outcome = Iterator[Finding | Skipped]
"""What a check yields: what is wrong, or why it could not look."""
_SHOWN = 8


class WeightCheck(Protocol):
    """A module: the name of a fault, a function, and a docstring that explains it."""

    @property
    def NAME(self) -> str:
        """The fault, as findings and `gradwatch explain` name it."""

    @property
    def check(self) -> Callable[[Checkpoint], Outcome]:
        """Looks at a checkpoint and yields what it found."""

    @property
    def __doc__(self) -> str | None: ...  # type: ignore[override]


@dataclass(frozen=True, eq=False)
class TensorFault:
    """One tensor that has a fault, how badly, and in words."""

    stats: TensorStats
    value: float
    words: str


def worst_first(faults: Sequence[TensorFault]) -> list[TensorFault]:
    """By how bad they are; equal ones in the checkpoint's order."""
    return sorted(faults, key=lambda fault: -fault.value)


def graded(
    name: str,
    checkpoint: Checkpoint,
    faults: Sequence[TensorFault],
    limits: Mapping[Severity, float],
    *,
    stat: Stat,
    cause: str,
    advice: tuple[str, ...],
) -> Iterator[Finding]:
    """One finding for each severity, of the faults at or above its limit; gravest first."""
    rest = worst_first(faults)
    for severity, limit in limits.items():
        reached = [fault for fault in rest if fault.value >= limit]
        rest = rest[len(reached) :]
        yield from finding(
            name, severity, checkpoint, reached, stat=stat, limit=limit, cause=cause, advice=advice
        )


def finding(
    name: str,
    severity: Severity,
    checkpoint: Checkpoint,
    faults: Sequence[TensorFault],
    *,
    stat: Stat,
    limit: float | None,
    cause: str,
    advice: tuple[str, ...],
) -> Iterator[Finding]:
    """One finding for all faults, the worst of which comes first; none for none."""
    if not faults:
        return
    layers = tuple(dict.fromkeys(fault.stats.tensor.layer for fault in faults))
    rest = len(faults) - 1
    more = f"; {rest} more {'tensor' if rest == 1 else 'tensors'}" if rest else ""
    yield Finding(
        check=name,
        severity=severity,
        layers=layers[:_SHOWN],
        first_step=checkpoint.step,
        last_step=checkpoint.step,
        message=f"{faults[0].stats.name}: {faults[0].words}{more}",
        evidence=tuple(
            Evidence(str(stat), fault.stats.name, checkpoint.step, fault.value, limit)
            for fault in faults[:_SHOWN]
        ),
        cause=cause,
        advice=advice,
    )


_EMBEDDINGS = ("embed", "wte", "wpe", "emb", "token_type", "lookup")
_NORMS = frozenset({"ln", "bn", "gn"})
_BUFFERS = (
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "position_ids",
    "inv_freq",
    "mask",
    "masked_bias",
    "rotary",
    "cos_cached",
    "sin_cached",
    "relative_position_index",
)


def is_buffer(tensor: TensorEntry) -> bool:
    """Whether the name is one that no optimizer touches, or the numbers are no floats."""
    role = tensor.role.lower()
    square = len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1)
    return (
        not tensor.element.floating
        or any(word in role for word in _BUFFERS)
        or (role == "bias" and square)  # GPT-2 keeps its causal mask under this name
    )


def is_matrix(tensor: TensorEntry) -> bool:
    """A trained weight with rows and columns."""
    return len(tensor.shape) >= 2 and not is_buffer(tensor)


def is_embedding(tensor: TensorEntry) -> bool:
    """A table looked up by number, judged by its name."""
    words = tensor.name.lower()
    return len(tensor.shape) == 2 and any(word in words for word in _EMBEDDINGS)


def is_norm_gain(tensor: TensorEntry, normalised: frozenset[str] = frozenset()) -> bool:
    """The gain of a normalisation layer: by its name, or one of the `normalised` layers."""
    if len(tensor.shape) != 1 or is_buffer(tensor):
        return False
    last = tensor.layer.lower().rpartition(".")[2]
    named = "norm" in last or not _NORMS.isdisjoint(re.split(r"[^a-z]+", last))
    gain = tensor.role.lower() in ("weight", "gamma", "scale", "gain", "g")
    return gain and (named or tensor.layer in normalised)
