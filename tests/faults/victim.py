"""A writer whose every value follows from the step and a seed, and what must be left of it."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from tests.store.trial import subjects

from gradwatch.errors import GradwatchError
from gradwatch.graph import Graph, Node
from gradwatch.run import Event, EventKind, Histogram, Run
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Retention, Writer, open_run, sealer, writer_thread

TENSORS = 2
GRAPH = Graph((Node("layer0", "Linear"), Node("layer1", "Linear")), (("layer0", "layer1"),))
WITH_EVENT, WITH_HISTOGRAM, WITH_SKETCH = 8, 4, 4
"""Every so many steps have one."""


def hurry(seal_bytes: int = 2_500) -> None:
    """Seal small journals, merge few rollups, try again at once: all of it happens all the time."""
    writer_thread.SEAL_BYTES = seal_bytes
    writer_thread.FIRST_WAIT = writer_thread.LONGEST_WAIT = 0.005
    sealer.MERGED_FILES = 2


def family_of(seed: int) -> Family:
    """Gradients have sketches; updates have fewer columns and are sealed faster."""
    return Family.GRAD if seed % 4 == 0 else Family.UPDATE


def keep_of(seed: int) -> Retention | None:
    """Every third writer throws old rows away."""
    return Retention(bytes=30_000) if seed % 3 == 0 else None


class Victim:
    """Writes until it is told to stop, or killed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.seed, self.family = seed, family_of(seed)
        self.writer = Writer.create(path, name="victim", keep=keep_of(seed), queue_bytes=1 << 20)
        self.ids = self.writer.declare(subjects(TENSORS))
        self.writer.graph(GRAPH)
        self.states = np.zeros(TENSORS, np.uint8)
        self.step = 0

    def put(self) -> None:
        """One step."""
        writer, step = self.writer, self.step
        writer.put(self.family, step, self.ids, rows_of(step, self.seed), self.states)
        writer.scalars(step, {"loss": 1.0 / (step + 1)})
        if step % WITH_HISTOGRAM == 0:
            writer.histograms(Family.GRAD, step, 0, histogram_of(step))
        if step % WITH_EVENT == 0:
            writer.event(Event(step, EventKind.AUDIT, f"event {step}"))
        self.step += 1

    def batches(self, most: int = 12) -> Iterator[int]:
        """Put some steps, and some more: how many there are so far."""
        chance = random.Random(self.seed)
        while True:
            for _ in range(chance.randint(1, most)):
                self.put()
            yield self.step


def rows_of(step: int, seed: int) -> np.ndarray:
    family = family_of(seed)
    rows = np.zeros(TENSORS, row_dtype(family))
    rows[f"{family}_norm"] = step + 1 + np.arange(TENSORS) / 4
    if family is Family.UPDATE:
        rows["update_ratio"] = (seed % 97) / 128
    else:
        rows["grad_sketch"] = step % 128 if step % WITH_SKETCH == 0 else np.nan
    return rows


def histogram_of(step: int) -> Histogram:
    return Histogram(-3, np.array([step + 1, 1], np.uint64), np.array([1, 2 * step], np.uint64))


# -- what is left ----------------------------------------------------------------------------------


def problems(path: Path, seed: int, acknowledged: int, *, closed: bool | None = False) -> list[str]:
    """What is wrong with the run that a writer left; None: it was about to be closed."""
    try:
        run = open_run(path)
        checks: list[Callable[[Run, int, int], Iterator[str]]]
        checks = [_rows, _windows, _sketches, _histograms, _small]
        wrong = [text for check in checks for text in check(run, seed, acknowledged)]
    except (GradwatchError, KeyError) as error:
        return [f"cannot be read: {error!r}"]
    bad = (EventKind.DAMAGE, EventKind.GAP)
    wrong += [event.text for event in run.events if event.kind in bad]
    if closed is not None and run.info["complete"] != closed:
        wrong.append(f"complete is {run.info['complete']}")
    return [*wrong, *_twice(path)]


def taken(run: Run) -> np.ndarray:
    """For every step, whether retention took its rows."""
    gone = np.zeros(len(run.steps), bool)
    for event in run.events:
        if event.kind is EventKind.RETENTION:
            first, last = event.data["first_step"], event.data["last_step"]
            gone |= (run.steps >= first) & (run.steps <= last)
    return gone


def _rows(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    steps = run.steps
    if steps.tolist() != list(range(len(steps))) or len(steps) < acknowledged:
        yield f"{len(steps)} steps of {acknowledged} acknowledged"
    name = f"{family_of(seed)}_norm"
    state, norm = run.state(name), run.series[name]
    valued = state == State.MEASURED
    if not (valued | (state == State.NOT_SAMPLED)).all():
        yield f"states {np.unique(state).tolist()}"
    if not valued[:acknowledged][~taken(run)[:acknowledged]].all():
        yield "rows are missing"
    true = np.add.outer(steps + 1.0, np.arange(TENSORS) / 4)
    if not (norm[valued] == true[valued]).all():
        yield "wrong values"
    if family_of(seed) is Family.UPDATE:
        ratio = run.series["update_ratio"][run.state("update_ratio") == State.MEASURED]
        if not (ratio == (seed % 97) / 128).all():
            yield "wrong values of another column"


def _windows(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    """The norm grows with the step: a bucket's extremes are those of its first and last step.

    Where rollups stand in for rows, only those of all steps are sure to be there.
    """
    for points in (1,) if taken(run).any() else (1, 6):
        window = run.window(0, acknowledged - 1, points=points).stat(f"{family_of(seed)}_norm")
        share = np.arange(TENSORS) / 4
        lowest = np.add.outer(window.first_steps + 1.0, share)
        highest = np.add.outer(window.last_steps + 1.0, share)
        ends = window.first_steps[:1].tolist() + window.last_steps[-1:].tolist()
        whole = ends == [0, acknowledged - 1]
        if not (whole and (window.low == lowest).all() and (window.high == highest).all()):
            yield f"a window of {points} points is wrong"


def _sketches(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    if family_of(seed) is not Family.GRAD:
        return
    state, sketch = run.state("grad_sketch"), run.series["grad_sketch"]
    valued = state == State.MEASURED
    due = (run.steps % WITH_SKETCH == 0) & (run.steps < acknowledged) & ~taken(run)
    if not valued[due].all():
        yield "sketches are missing"
    true = np.broadcast_to((run.steps % 128)[:, None, None], sketch.shape)
    if not (sketch[valued] == true[valued]).all():
        yield "wrong sketches"


def _histograms(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    found = dict(run.histograms("grad", "layer0.weight").items())
    for step in run.steps[~taken(run)].tolist():
        if step < acknowledged and step % WITH_HISTOGRAM == 0 and step not in found:
            yield f"the histogram of step {step} is missing"
    for step, histogram in found.items():
        true = histogram_of(step)
        if not (
            np.array_equal(histogram.negative, true.negative)
            and np.array_equal(histogram.positive, true.positive)
        ):
            yield f"a wrong histogram of step {step}"


def _small(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    loss = run.scalars["loss"]
    if not np.array_equal(loss[:acknowledged], 1.0 / (run.steps[:acknowledged] + 1)):
        yield "wrong or missing scalars"
    texts = [event.text for event in run.events if event.kind is EventKind.AUDIT]
    due = {f"event {step}" for step in range(0, acknowledged, WITH_EVENT)}
    if len(texts) != len(set(texts)):
        yield "events are there twice"
    if not due <= set(texts):
        yield "events are missing"
    if list(run.names) != [subject.name for subject in subjects(TENSORS)]:
        yield f"other names: {run.names}"
    if run.graph is None or run.graph.edges != GRAPH.edges:
        yield "the graph is missing"


def _twice(path: Path) -> Iterator[str]:
    """What other programs see: every file of rows can be read, no row is in two."""
    cells: list[tuple[int, int]] = []
    for file in path.glob("*/rows/*/*.parquet"):
        table = pq.read_table(file, columns=["step", "subject"], use_threads=False)
        cells += zip(*(column.to_pylist() for column in table.columns), strict=True)
    if len(cells) != len(set(cells)):
        yield "rows are in two Parquet files"


def levels(path: Path, seed: int, steps: int) -> Iterator[str]:
    """Coarser rollups of a finished run begin with its first row and leave none out before their
    end; the finest have them all, unless a journal could not be sealed."""
    name = f"{family_of(seed)}_norm"
    columns = ["rows", "subject", f"{name}_min", f"{name}_max"]
    for size in () if any(path.glob("*/journal-*")) else (10, 100, 1000):
        files = [*path.glob(f"*/rollups/*-{size}/*.parquet")]
        tables = [pq.read_table(file, columns=columns, use_threads=False) for file in files]
        rows, subject, low, high = (
            np.concatenate([table[column].to_numpy() for table in tables] or [np.empty(0)])
            for column in columns
        )
        first = subject == 0
        rows, low, high = rows[first].sum(), low[first].min(initial=1), high[first].max(initial=0)
        if low != 1 or high != rows or (size == 10 and rows != steps):
            yield f"the rollups of {size} have {rows} rows of {steps}, from {low} to {high}"
