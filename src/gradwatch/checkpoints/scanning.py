"""`scan`: from the paths of checkpoints to what was measured of them, and to a `Run`."""

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.blocks import Access, index_of, reading
from gradwatch.checkpoints.index import Index, TensorEntry, owner_of
from gradwatch.checkpoints.limits import MAX_FILES
from gradwatch.checkpoints.measure import TensorStats, joined, measure_tensors, measuring_units
from gradwatch.checkpoints.parallel import Progress, ScanOptions
from gradwatch.checkpoints.readers import open_index
from gradwatch.checkpoints.readers.distributed import METADATA
from gradwatch.checkpoints.readers.files import names_in
from gradwatch.checkpoints.readers.folders import has_weights
from gradwatch.checkpoints.spectrum import Spectrum, spectra
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import paths_of
from gradwatch.run import Event, EventKind, Histogram, MemorySource, Run, Subject
from gradwatch.stats import Family, Kind, Stat, State

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, measured."""

    step: int
    index: Index
    tensors: tuple[TensorStats, ...]
    spectra: dict[str, Spectrum] | None = None
    """Singular values by the name of the matrix; None where they were not computed."""
    access: Access = reading
    """How its bytes are read again."""

    @property
    def by_name(self) -> dict[str, TensorStats]:
        """What was measured under every name: tied tensors have several."""
        return {name: stats for stats in self.tensors for name in stats.tensor.names}


@dataclass(frozen=True)
class ScannedSource(MemorySource):
    """The statistics of checkpoints, and the last of them as it was measured."""

    checkpoint: Checkpoint | None = None


def scan(
    path: Paths,
    *,
    spectrum: bool = False,
    workers: int | None = None,
    dask: str | None = None,
    progress: Progress = lambda done, total: None,
    executor: Executor | None = None,
) -> Run:
    """The weights of a checkpoint as a `Run` of one step; of several in order, one step for each.

    Nothing in the files is trusted or executed. `spectrum` adds the singular values of the last
    one; `dask` is the address of a running scheduler; `executor` is used in place of a pool of
    processes and is not shut down.
    """
    options = ScanOptions(workers, dask, progress, executor)
    checkpoints = measure_checkpoints(path, options)
    if spectrum:
        last = checkpoints[-1]
        checkpoints[-1] = replace(last, spectra=spectra(last.index, options))
    return run_of(checkpoints)


def scan_arrays(arrays: Mapping[str, NDArray[Any]]) -> Run:
    """Arrays in memory as a `Run` of one step, measured as the same numbers in a file would be."""
    index, access = index_of(arrays)
    parts = [unit.function(access, *unit.arguments) for unit in measuring_units(index, full=True)]
    tensors = joined(index, chain.from_iterable(parts))
    return run_of([Checkpoint(0, index, tensors, access=access)])


def measure_checkpoints(path: Paths, options: ScanOptions) -> list[Checkpoint]:
    """Every checkpoint of the paths, in order."""
    places = _steps(path)
    checkpoints = []
    for step, place in places:
        index = open_index(place)
        # hashes serve to compare steps: a single one needs none
        tensors = measure_tensors(index, options, full=True, hashed=len(places) > 1)
        checkpoints.append(Checkpoint(step, index, tensors))
    return checkpoints


# -- which checkpoints -----------------------------------------------------------------------------

_NUMBER = re.compile(r"(\d{1,15})(?=\D*$)")


def _steps(path: Paths) -> list[tuple[int, Path]]:
    """(step, place) of each: the numbers in the names where they increase, else 0, 1, …"""
    places = [Path(item) for item in paths_of(path)]
    if not places:
        raise GradwatchError("Expected a checkpoint, got an empty list.", Exit.USAGE)
    if len(places) == 1:
        return _inside(places[0]) or [(0, places[0])]
    numbers = [number for place in places if (number := _number(place.name)) is not None]
    if len(numbers) == len(places) and all(a < b for a, b in pairwise(numbers)):
        return list(zip(numbers, places, strict=True))
    return list(enumerate(places))


def _inside(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints in a folder that is none itself: `checkpoint-100`, `checkpoint-200` …"""
    if not folder.is_dir() or (folder / METADATA).exists():
        return []
    names = names_in(folder, MAX_FILES)
    if has_weights(names):
        return []
    places = sorted(
        (number, folder / name)
        for name in names
        if (number := _number(name)) is not None and (folder / name).is_dir()
    )
    return places if len({number for number, _ in places}) == len(places) else []


def _number(name: str) -> int | None:
    stem = name.rpartition(".")[0] if name.endswith((".pt", ".pth", ".bin", ".npz")) else name
    match = _NUMBER.search(stem.removesuffix(".safetensors"))
    return int(match[1]) if match else None


# -- as a run --------------------------------------------------------------------------------------

_MOMENTS = ("norm", "mean", "std", "skewness", "kurtosis", "abs_mean", "abs_max", "min", "max")
_NUMBERS = tuple(Stat(f"weight_{name}") for name in (*_MOMENTS, "zero_fraction", "row_spread"))
_COUNTS = tuple(Stat(f"weight_{name}") for name in ("count", "nan", "inf", "zero_rows", "hash"))


def run_of(checkpoints: Sequence[Checkpoint]) -> Run:
    """One step for each; a tensor that a checkpoint lacks is not sampled there."""
    latest = {name: s for checkpoint in checkpoints for name, s in checkpoint.by_name.items()}
    column = {name: number for number, name in enumerate(latest)}
    shape = (len(checkpoints), len(column))
    values = {stat: np.full(shape, math.nan) for stat in (*_NUMBERS, *_COUNTS)}
    exact = {stat: np.zeros(shape, np.uint64) for stat in _COUNTS}
    states = np.full(shape, State.NOT_SAMPLED, np.uint8)
    bins: dict[tuple[Family, str], dict[int, Histogram]] = {}
    for row, checkpoint in enumerate(checkpoints):
        for name, stats in checkpoint.by_name.items():
            at = row, column[name]
            states[at] = State.MEASURED
            for stat, value in zip(_NUMBERS, _numbers(stats), strict=True):
                values[stat][at] = value
            for stat, count in zip(_COUNTS, _counts(stats), strict=True):
                exact[stat][at], values[stat][at] = count, float(count)
            if stats.histogram is not None:
                steps = bins.setdefault((Family.WEIGHT, name), {})
                steps[checkpoint.step] = stats.histogram
    if len(checkpoints) == 1:  # nothing was hashed
        del values[Stat.WEIGHT_HASH], exact[Stat.WEIGHT_HASH]
    return Run(
        ScannedSource(
            np.array([checkpoint.step for checkpoint in checkpoints], np.int64),
            tuple(_subject(name, stats.tensor) for name, stats in latest.items()),
            values,
            _states(values, states),
            exact,
            events=tuple(
                Event(c.step, EventKind.NOT_RECORDED, f"{name}: {reason}", subject=name)
                for c in checkpoints
                for name, reason in c.index.left_out.items()
            ),
            info=_info([checkpoint.index for checkpoint in checkpoints]),
            bins=bins,
            checkpoint=checkpoints[-1],
        )
    )


def _numbers(stats: TensorStats) -> list[float]:
    moments = [float(stats.moments[name]) for name in _MOMENTS]
    return [*moments, stats.zero_fraction, stats.row_spread]


def _counts(stats: TensorStats) -> list[int]:
    count, nan, zero_rows = (int(stats.moments[name]) for name in ("count", "nan", "zero_rows"))
    return [count, nan, stats.nonfinite - nan, zero_rows, stats.content_hash]


def _states(
    values: dict[Stat, NDArray[np.float64]], states: NDArray[np.uint8]
) -> dict[Stat, NDArray[np.uint8]]:
    """All alike, but for the spread of rows, which only matrices have."""
    lacking = (states == State.MEASURED) & np.isnan(values[Stat.WEIGHT_ROW_SPREAD])
    spread_states = np.where(lacking, State.UNSUPPORTED, states).astype(np.uint8)
    return {**dict.fromkeys(values, states), Stat.WEIGHT_ROW_SPREAD: spread_states}


def _subject(name: str, tensor: TensorEntry) -> Subject:
    return Subject(
        Kind.PARAMETER,
        name,
        owner_of(name),
        tensor.shape,
        str(tensor.element),
        tensor.count,
        tied_to=tuple(other for other in tensor.names if other != name),
    )


def _info(indices: Sequence[Index]) -> dict[str, object]:
    first, last = indices[0], indices[-1]
    return {
        "name": first.path if len(indices) == 1 else f"{first.path} … {last.path}",
        "format": first.format,
        "kind": "checkpoint",
        "bytes": sum(index.bytes for index in indices),
        "files": sum(len(index.files) for index in indices),
        "complete": True,
    }
