"""`scan` and `examine`: from paths to a `Run`, and to everything the checks of weights need."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from gradwatch.checkpoints.access import close_all
from gradwatch.checkpoints.as_run import run_of
from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.joining import Measured, joined
from gradwatch.checkpoints.limits import ALONE_BYTES, MAX_FILES
from gradwatch.checkpoints.measuring import Part
from gradwatch.checkpoints.readers import open_index
from gradwatch.checkpoints.readers.distributed import METADATA
from gradwatch.checkpoints.readers.files import names_in
from gradwatch.checkpoints.readers.folders import has_weights
from gradwatch.checkpoints.spectrum import Spectrum
from gradwatch.checkpoints.tasks import (
    cut,
    cut_spectra,
    do_alone,
    do_in_worker,
    spectrum_alone,
    spectrum_in_worker,
)
from gradwatch.checkpoints.working import Progress, Work, cores, done_alone, done_together
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run

_Task = TypeVar("_Task", bound=Work)
_Result = TypeVar("_Result")
Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, measured."""

    step: int
    index: Index
    tensors: tuple[Measured, ...]


@dataclass(frozen=True)
class Means:
    """How to work: how many processes, on which cluster, and whom to tell."""

    workers: int | None = None
    """None: as many as there are processors; 0: none, all in the calling process."""
    dask: str | None = None
    progress: Progress = lambda done, total: None
    executor: Executor | None = None
    """Anything of that form, instead of a pool of our own; it is not shut down."""


def scan(
    path: Paths,
    *,
    workers: int | None = None,
    dask: str | None = None,
    progress: Progress = lambda done, total: None,
    executor: Executor | None = None,
) -> Run:
    """The weights of a checkpoint as a `Run` of one step; of several in order, one step for each.

    Nothing in the files is trusted or executed. `dask` is the address of a running scheduler;
    `executor` is used in place of a pool of processes and is not shut down.
    """
    means = Means(workers, dask, progress, executor)
    return run_of([(c.step, c.index, c.tensors) for c in measure_all(path, means, full=True)])


def measure_all(path: Paths, means: Means, *, full: bool) -> list[Checkpoint]:
    """Every checkpoint of the paths, in order."""
    found = series(path)
    marked = len(found) > 1
    return [
        measure_checkpoint(step, open_index(place), means, full=full, marked=marked)
        for step, place in found
    ]


def measure_checkpoint(
    step: int, index: Index, means: Means, *, full: bool, marked: bool
) -> Checkpoint:
    """One checkpoint: cut, done, joined in order."""
    tasks = list(cut(index, full=full, marked=marked))
    found = do_work(index, tasks, do_alone, do_in_worker, means)
    parts: dict[int, list[Part]] = {number: [] for number in range(len(index.tensors))}
    for part in (part for listed in found for part in listed):
        parts[part.tensor].append(part)
    return Checkpoint(
        step,
        index,
        tuple(joined(tensor, parts[number]) for number, tensor in enumerate(index.tensors)),
    )


def spectra(index: Index, means: Means) -> dict[str, Spectrum]:
    """The singular values of every matrix, by name."""
    tasks = list(cut_spectra(index))
    found = do_work(index, tasks, spectrum_alone, spectrum_in_worker, means)
    return {index.tensors[number].name: each for number, each in found if each is not None}


def do_work(
    index: Index,
    tasks: Sequence[_Task],
    alone: Callable[[_Task], _Result],
    in_worker: Callable[[_Task], _Result],
    means: Means,
) -> list[_Result]:
    """Small checkpoints here, others on workers, unless told otherwise."""
    workers = cores() if means.workers is None else means.workers
    small = index.reach <= ALONE_BYTES and means.workers is None
    try:
        here = means.dask is None and means.executor is None
        if not tasks or (here and (small or workers == 0)):
            return done_alone(tasks, alone, means.progress)
        return done_together(
            tasks,
            in_worker,
            means.progress,
            workers=workers,
            dask=means.dask,
            pool=means.executor,
        )
    except (OSError, MemoryError) as error:
        raise GradwatchError(f"Cannot read {index.path}: {error}.") from None
    finally:
        close_all()


_NUMBER = re.compile(r"(\d{1,15})(?=\D*$)")


def series(path: Paths) -> list[tuple[int, Path]]:
    """(step, place) of each: the numbers in the names where they increase, else 0, 1, …"""
    places = [Path(path)] if isinstance(path, str | Path) else [Path(item) for item in path]
    if not places:
        raise GradwatchError("Expected a checkpoint, got an empty list.", Exit.USAGE)
    if len(places) == 1:
        inner = _inner(places[0])
        return inner or [(0, places[0])]
    numbers = [_number(place.name) for place in places]
    known = [number for number in numbers if number is not None]
    if len(known) == len(places) and all(a < b for a, b in pairwise(known)):
        return list(zip(known, places, strict=True))
    return list(enumerate(places))


def _inner(folder: Path) -> list[tuple[int, Path]]:
    """Checkpoints in a folder that is none itself: `checkpoint-100`, `checkpoint-200` …"""
    if not folder.is_dir() or (folder / METADATA).exists():
        return []
    names = names_in(folder, MAX_FILES)
    if has_weights(names):
        return []
    found = [
        (number, folder / name)
        for name in names
        if (number := _number(name)) is not None and (folder / name).is_dir()
    ]
    found.sort()
    return found if len({number for number, _ in found}) == len(found) else []


def _number(name: str) -> int | None:
    stem = name.rpartition(".")[0] if name.endswith((".pt", ".pth", ".bin", ".npz")) else name
    match = _NUMBER.search(stem.removesuffix(".safetensors"))
    return int(match[1]) if match else None
