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
from gradwatch.run.subject import HistogramTable
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Retention, Writer, open_run
from gradwatch.store import writer as writer_thread
from gradwatch.store.layout import BUCKET, LOG, read_log

TENSORS = 2
GRAPH = Graph((Node("layer0", "Linear"), Node("layer1", "Linear")), (("layer0", "layer1"),))
WITH_EVENT, WITH_HISTOGRAM = 8, 4
"""Every so many steps have one."""


def hurry(part_bytes: int = 2_500) -> None:
    """Finish small parts, try again at once: all of it happens all the time."""
    writer_thread.PART_BYTES = part_bytes
    writer_thread.FIRST_WAIT = writer_thread.LONGEST_WAIT = 0.005


def family_of(seed: int) -> Family:
    """Updates have fewer columns, and are finished more often."""
    return Family.GRAD if seed % 4 == 0 else Family.UPDATE


def keep_of(seed: int) -> Retention | None:
    """Every third writer throws old rows away."""
    return Retention(bytes=30_000) if seed % 3 == 0 else None


class Victim:
    """Writes until it is told to stop, or killed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.seed, self.family = seed, family_of(seed)
        self.writer = Writer.create(path, name="victim", keep=keep_of(seed))
        self.ids = self.writer.declare(subjects(TENSORS))
        self.writer.graph(GRAPH)
        self.step = 0

    def put(self) -> None:
        """One step."""
        writer, step = self.writer, self.step
        states = np.zeros(TENSORS, np.uint8)
        writer.put(self.family, step, self.ids, rows_of(step, self.seed), states)
        writer.scalars(step, {"loss": 1.0 / (step + 1)})
        if step % WITH_HISTOGRAM == 0:
            table = HistogramTable.of([histogram_of(step)])
            writer.histogram_table(Family.GRAD, step, self.ids[:1], table)
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
    return rows


def histogram_of(step: int) -> Histogram:
    return Histogram(-3, np.array([step + 1, 1], np.uint64), np.array([1, 2 * step], np.uint64))


# -- what is left ----------------------------------------------------------------------------------


def problems(path: Path, seed: int, acknowledged: int, *, closed: bool | None = False) -> list[str]:
    """What is wrong with the run that a writer left; None: it was about to be closed."""
    try:
        run = open_run(path)
        checks: list[Callable[[Run, int, int], Iterator[str]]]
        checks = [_rows, _histograms, _small]
        if not coarse_rows_went(path):
            checks.append(_windows)
        wrong = [text for check in checks for text in check(run, seed, acknowledged)]
    except (GradwatchError, KeyError, IndexError, ValueError) as error:
        return [f"cannot be read: {error!r}"]
    bad = (EventKind.DAMAGE, EventKind.GAP)
    wrong += [event.text for event in run.events if event.kind in bad]
    if closed is not None and run.info["complete"] != closed:
        wrong.append(f"complete is {run.info['complete']}")
    return [*wrong, *_twice(path)]


def taken(run: Run) -> np.ndarray:
    """For every step, whether retention may have taken its rows."""
    found = [event for event in run.events if event.kind is EventKind.RETENTION]
    return run.steps < max((event.data["before"] for event in found), default=0)


def coarse_rows_went(path: Path) -> bool:
    """Whether the log says that coarse rows were removed; a kill may leave their file behind."""
    removed = [read_log(log.read_bytes())[0].get("removed", []) for log in path.glob(f"*/{LOG}")]
    return "coarse/" in str(removed)


def norms(steps: np.ndarray) -> np.ndarray:
    return np.add.outer(steps + 1.0, np.arange(TENSORS) / 4)


def wrong_norms(run: Run, name: str) -> Iterator[str]:
    """Each value is the true one of its step; where rows were removed, that of a step nearby."""
    state, norm, gone = run.state(name), run.series[name], taken(run)
    valued = state == State.MEASURED
    if not (valued | (state == State.NOT_SAMPLED)).all():
        yield f"states {np.unique(state).tolist()}"
    away = np.where(valued, norm - norms(run.steps)[:, : norm.shape[1]], 0)
    if away[~gone].any():
        yield "wrong values"
    if (away % 1).any() or np.abs(away).max(initial=0) > BUCKET:
        yield "wrong values where rows were removed"


def _rows(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    steps = run.steps
    if steps.tolist() != list(range(len(steps))) or len(steps) < acknowledged:
        yield f"{len(steps)} steps of {acknowledged} acknowledged"
    name = f"{family_of(seed)}_norm"
    yield from wrong_norms(run, name)
    valued = run.state(name) == State.MEASURED
    if not valued[:acknowledged][~taken(run)[:acknowledged]].all():
        yield "rows are missing"
    if family_of(seed) is Family.UPDATE:
        ratio = run.series["update_ratio"][run.state("update_ratio") == State.MEASURED]
        if not (ratio == (seed % 97) / 128).all():
            yield "wrong values of another column"


def _windows(run: Run, seed: int, acknowledged: int) -> Iterator[str]:
    """The norm grows with the step: a bucket's extremes are those of its first and last step.

    Where coarse rows stand in for rows, only those of all steps are sure to be there.
    """
    for points in (1,) if taken(run).any() else (1, 6):
        window = run.window(0, acknowledged - 1, points=points).stat(f"{family_of(seed)}_norm")
        ends = window.first_steps[:1].tolist() + window.last_steps[-1:].tolist()
        whole = ends == [0, acknowledged - 1]
        right = (window.low == norms(window.first_steps)).all()
        if not (whole and right and (window.high == norms(window.last_steps)).all()):
            yield f"a window of {points} points is wrong"


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


def coarse(path: Path, seed: int, steps: int) -> Iterator[str]:
    """The coarse rows of a finished run have its first and its last row, and each part once."""
    name, files = f"{family_of(seed)}_norm", sorted(path.glob("*/coarse/*/*.parquet"))
    if not any(file.name.startswith("00001-") for file in files) or any(path.rglob("*.arrows")):
        return  # the oldest were removed too, or a part could not be finished
    found = [row for file in files for row in pq.read_table(file, use_threads=False).to_pylist()]
    own = [row for row in found if row["subject"] == 0]
    ends = min(row[f"{name}_min"] for row in own), max(row[f"{name}_max"] for row in own)
    begins = [row["step"] for row in own]
    if ends != (1, steps) or len(set(begins)) != len(begins):
        yield f"coarse rows from {ends} of {steps} steps, beginning at {begins}"
