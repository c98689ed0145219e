"""The form of a check of weights, and the one way in which all of them speak."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.joining import Measured
from gradwatch.checkpoints.spectrum import Spectrum
from gradwatch.finding import Evidence, Finding, Severity, Skipped
from gradwatch.stats import Stat

Said = Iterator[Finding | Skipped]
_SHOWN = 8


@dataclass(frozen=True)
class Patient:
    """What a check looks at: one measured checkpoint, its spectra if asked for."""

    step: int
    index: Index
    tensors: tuple[Measured, ...]
    spectra: dict[str, Spectrum] | None = None


class Check(Protocol):
    """A module: the name of a fault, a function, and a docstring that explains it."""

    @property
    def NAME(self) -> str: ...
    @property
    def check(self) -> Callable[[Patient], Said]: ...
    @property
    def __doc__(self) -> str | None: ...  # type: ignore[override]


@dataclass(frozen=True)
class Case:
    """One tensor that has the fault, how badly, and in words."""

    tensor: Measured
    measured: float
    words: str


def said(
    name: str,
    severity: Severity,
    patient: Patient,
    cases: Sequence[Case],
    *,
    stat: Stat | str,
    limit: float | None,
    cause: str,
    advice: tuple[str, ...],
) -> Iterator[Finding]:
    """One finding for all cases, the worst first; none for none."""
    if not cases:
        return
    layers = tuple(dict.fromkeys(case.tensor.layer for case in cases))
    rest = len(cases) - 1
    more = f"; {rest} more {'tensor' if rest == 1 else 'tensors'}" if rest else ""
    yield Finding(
        check=name,
        severity=severity,
        layers=layers[:_SHOWN],
        first_step=patient.step,
        last_step=patient.step,
        message=f"{cases[0].tensor.name}: {cases[0].words}{more}",
        evidence=tuple(
            Evidence(str(stat), case.tensor.name, patient.step, case.measured, limit)
            for case in cases[:_SHOWN]
        ),
        cause=cause,
        advice=advice,
    )


def worst_first(cases: Sequence[Case]) -> list[Case]:
    """By how bad they are; equal ones in the checkpoint's order."""
    return sorted(cases, key=lambda case: -case.measured)


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


def is_buffer(measured: Measured) -> bool:
    """Whether the name is one that no optimizer touches, or the numbers are no floats."""
    role = measured.role.lower()
    square = len(measured.tensor.shape) == 4 and measured.tensor.shape[:2] == (1, 1)
    return (
        not measured.tensor.element.floating
        or any(word in role for word in _BUFFERS)
        or (role == "bias" and square)  # GPT-2 keeps its causal mask under this name
    )


def is_matrix(measured: Measured) -> bool:
    """A trained weight with rows and columns."""
    return len(measured.tensor.shape) >= 2 and not is_buffer(measured)


def is_embedding(measured: Measured) -> bool:
    """A table looked up by number, judged by its name."""
    words = measured.name.lower()
    return len(measured.tensor.shape) == 2 and any(word in words for word in _EMBEDDINGS)


def is_norm_gain(measured: Measured, normalised: frozenset[str] = frozenset()) -> bool:
    """The gain of a normalisation layer: by its name, or one of the `normalised` layers."""
    if len(measured.tensor.shape) != 1 or is_buffer(measured):
        return False
    last = measured.layer.lower().rpartition(".")[2]
    named = "norm" in last or not _NORMS.isdisjoint(re.split(r"[^a-z]+", last))
    gain = measured.role.lower() in ("weight", "gamma", "scale", "gain", "g")
    return gain and (named or measured.layer in normalised)
