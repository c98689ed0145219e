"""What the checks of weights share: the tensors they judge, and how they make their findings."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.elements import SIZES, Element
from gradwatch.checkpoints.index import Index, TensorEntry
from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.checks.check import finding
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.kernel import MOMENTS
from gradwatch.run import Run
from gradwatch.stats import HAS_VALUE, Family, Stat

_SHOWN = 8


# -- which tensors ---------------------------------------------------------------------------------


def weights_only(run: Run) -> bool:
    """Whether a run is no training: a checkpoint, or a series of weights without any gradient."""
    families = {stat.family for stat in run.recorded}
    return families == {Family.WEIGHT} and not run.scalars


def has_elements(run: Run) -> bool:
    """Whether the weights themselves can still be read: those that were scanned."""
    return getattr(run.source, "checkpoint", None) is not None


def checkpoint_of(run: Run) -> Checkpoint:
    """The weights a run ends with: as scanned (the last checkpoint), else as its statistics tell.

    What only statistics are known of has no rows, columns or histograms.
    """
    scanned: Checkpoint | None = getattr(run.source, "checkpoint", None)
    if scanned is not None:
        return scanned
    known = _CHECKPOINTS.get(run)
    if known is None:
        known = _CHECKPOINTS[run] = _from_statistics(run)
    return known


_CHECKPOINTS: "WeakKeyDictionary[Run, Checkpoint]" = WeakKeyDictionary()
_COPIED = ("mean", "std", "skewness", "kurtosis", "norm", "abs_mean", "abs_max", "min", "max")


def last_rows(
    run: Run, stat: Stat, end: int | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The parameters with a measured value (their columns), and the row of the last one of each.

    Only rows before `end` count, where it is given.
    """
    rows = run.sampled(stat)
    rows = rows if end is None else rows[: np.searchsorted(rows, end)]
    measured = HAS_VALUE[run.states_at(stat, rows)]
    columns = np.flatnonzero(measured.any(axis=0))
    last = len(rows) - 1 - measured[::-1, columns].argmax(axis=0) if len(columns) else columns
    return columns, rows[last]


def last_weights(run: Run) -> tuple[NDArray[np.intp], NDArray[np.void], NDArray[np.float64]]:
    """Of every parameter whose weight was measured: column, last moments, last spread of rows.

    A tensor that only an earlier one of several checkpoints holds is none of the last weights. Of a
    training that went non-finite they are the last ones before.
    """
    finite = context(run).rows(Stat.WEIGHT_NORM)
    end = None if weights_only(run) or not len(finite) else int(finite[-1]) + 1
    columns, rows = last_rows(run, Stat.WEIGHT_NORM, end)
    if has_elements(run):
        held = rows == len(run.steps) - 1
        columns, rows = columns[held], rows[held]

    def last(name: str) -> NDArray[np.float64]:
        return run.at(Stat(f"weight_{name}"), rows, columns)

    records = np.zeros(len(columns), MOMENTS)
    for name in _COPIED:
        records[name] = last(name)
    for name in ("count", "nan", "zero_rows"):
        records[name] = np.nan_to_num(last(name))
    records["pos_inf"] = np.nan_to_num(last("inf"))  # a run does not keep the signs apart
    records["zeros"] = np.rint(np.nan_to_num(last("zero_fraction")) * records["count"])
    return columns, records, last("row_spread")


def _from_statistics(run: Run) -> Checkpoint:
    tensors = []
    for column, moments, spread in zip(*last_weights(run), strict=True):
        subject = run.parameters[column]
        dtype = subject.dtype.removeprefix("torch.")
        element = Element(dtype) if dtype in SIZES else Element.FLOAT32
        tensor = TensorEntry(subject.name, subject.shape, element, ())
        tensors.append(TensorStats(tensor, moments, None, 0, None, float(spread), None, None, None))
    step = int(run.steps[-1]) if len(run.steps) else 0
    return Checkpoint(step, Index("", "statistics", (), ()), tuple(tensors))


# -- what is said of them --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TensorFault:
    """One tensor that has a fault, how badly, and in words."""

    stats: TensorStats
    value: float
    words: str
    severity: Severity | None = None
    """None: by the limits."""


def findings(
    name: str,
    run: Run,
    faults: Sequence[TensorFault],
    limits: Mapping[Severity, float | None],
    *,
    stat: Stat,
    cause: str,
    advice: tuple[str, ...],
    below: bool = False,
) -> Iterator[Finding]:
    """One finding for each severity, gravest first, with its tensors, the worst of them in front.

    Unless a fault says how grave it is, it has the first severity whose limit it reaches: from
    above, or from `below`.
    """
    step = checkpoint_of(run).step
    sign = -1.0 if below else 1.0
    faults = sorted(faults, key=lambda fault: -sign * fault.value)
    for severity, limit in limits.items():
        group = [fault for fault in faults if _graded(fault, limits, sign) is severity]
        if not group:
            continue
        owners = {subject.name: subject.layer for subject in run.parameters}
        names = list(dict.fromkeys(fault.stats.name for fault in group))
        more = f"; {len(names) - 1} more {'tensor' if len(names) == 2 else 'tensors'}"
        yield finding(
            name,
            severity,
            tuple(dict.fromkeys(owners[tensor] for tensor in names)),
            (step,),
            f"{names[0]}: {group[0].words}{more if len(names) > 1 else ''}",
            [
                Evidence(str(stat), fault.stats.name, step, fault.value, limit)
                for fault in group[:_SHOWN]
            ],
            cause=cause,
            advice=advice,
            tensors=names,
        )


def _graded(
    fault: TensorFault, limits: Mapping[Severity, float | None], sign: float
) -> Severity | None:
    if fault.severity is not None:
        return fault.severity
    items = limits.items()
    return next(
        (s for s, limit in items if limit is None or sign * (fault.value - limit) >= 0), None
    )


# -- what a tensor is, by its name and shape -------------------------------------------------------

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
