"""Trials of recipes, trained and diagnosed; precision, recall and the rest over many of them."""

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.files import write_text
from gradwatch.finding import Severity
from gradwatch.live import watch
from gradwatch.store import open_run
from gradwatch.zoo.criteria import labels
from gradwatch.zoo.families import EVERY
from gradwatch.zoo.training import Draw, Length, Training, ZooFamily, train
from gradwatch.zoo.witness import Label, Witness


@dataclass(frozen=True)
class Trial:
    """The faults one training really has, and those the checks reported."""

    family: str
    sick: bool
    seed: int
    labels: tuple[Label, ...]
    culprits: tuple[str, ...]
    diagnosis: Diagnosis


def prepare(family: ZooFamily, seed: int, length: Length = Length.DEFAULT) -> Training:
    """The training of a family, a seed and a length, the same each time."""
    torch.manual_seed(zlib.crc32(f"{family.name}/{seed}".encode()))
    return family.make(Draw(zlib.crc32(f"{seed}/{family.name}".encode()), length))


def attempt(
    family: ZooFamily,
    seed: int,
    folder: Path | None = None,
    *,
    length: Length = Length.DEFAULT,
    every: int | None = None,
) -> Trial:
    """Train once, label from the tensors, diagnose from the recording.

    `every` as in `watch`: None is what users get, with a cadence that follows the clock.
    """
    # on a busy machine the writer may still be sealing when `close` has waited long enough
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        target = folder or Path(scratch) / "run"
        training = prepare(family, seed, length)
        witness = Witness(training)
        watcher = watch(training.model, *training.optimizers, run=target, every=every)
        training.log = watcher.log
        try:
            train(training, [witness])
        finally:
            watcher.close()
            witness.close()
        return Trial(
            family.name, family.sick, seed, labels(witness), training.culprits,
            diagnose(open_run(target)),
        )  # fmt: skip


TAXONOMY = frozenset(
    """nonfinite exploding-gradient vanishing-gradient gradient-spikes no-gradient not-updated
    dead-units saturation symmetric-weights bad-init weight-collapse weight-explosion
    update-ratio-too-small update-ratio-too-large loss-oscillation loss-spike divergence
    slow-convergence stale-gradients input-scale norm-misuse output-misuse overfitting
    update-lost-to-rounding no-optimizer-step foreign-optimizer learning-rate-zero not-learning
    duplicated-batches constant-output target-scale output-range eval-mode-in-training
    dropout-in-evaluation class-imbalance lost-initialisation unused-input clipped-to-nothing
    overpowering-discriminator""".split()  # noqa: SIM905
)


"""The names that count; weight-decay-on-norms and moving-targets are informations only."""


Job = tuple[str, int, str]
"""ZooFamily, seed and length of a trial."""


@dataclass(frozen=True)
class Row:
    """One trial, reduced to what is counted; small enough to pass between processes."""

    family: str
    seed: int
    sick: bool
    strong: frozenset[str]
    weak: frozenset[str]
    reported: frozenset[str]
    """Checks with a warning or worse, consequences included."""
    first: str
    """The first finding's name and layer, for reading."""
    right_culprit: bool | None
    """None where the fault is in no layer."""
    onset_errors: tuple[int, ...] = ()
    length: str = Length.DEFAULT.value

    @property
    def job(self) -> Job:
        """Which trial this is."""
        return self.family, self.seed, self.length

    @property
    def missed(self) -> frozenset[str]:
        """Strong faults that no check reported."""
        return self.strong - self.reported

    @property
    def wrong(self) -> frozenset[str]:
        """Reported and not even weakly true."""
        return (self.reported & TAXONOMY) - self.strong - self.weak


class Score:
    """The figures of a set of rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.hits = sum(len(row.strong & row.reported) for row in self.sick)
        self.misses = sum(len(row.missed) for row in self.sick)
        self.extras = sum(len(row.wrong) for row in self.sick)

    @property
    def sick(self) -> list[Row]:
        """Trials of sick families that really have a fault."""
        return [row for row in self.rows if row.sick and row.strong]

    @property
    def healthy(self) -> list[Row]:
        """Trials of healthy families in which nothing is strongly true."""
        return [row for row in self.rows if not row.sick and not row.strong]

    @property
    def dropped(self) -> list[Row]:
        """Trials whose label could not be verified: sick without a fault, healthy with one."""
        return [row for row in self.rows if row.sick != bool(row.strong)]

    @property
    def precision(self) -> float:
        """Share of what was reported on sick trials that is true."""
        return self.hits / max(1, self.hits + self.extras)

    @property
    def recall(self) -> float:
        """Share of the strong faults that was reported."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.hits / max(1, 2 * self.hits + self.misses + self.extras)

    @property
    def alarms(self) -> list[Row]:
        """Healthy trials with any warning."""
        return [row for row in self.healthy if row.reported]

    @property
    def culprits(self) -> tuple[int, int]:
        """Trials whose first finding names the right layer first, of those that have one."""
        judged = [row for row in self.sick if row.right_culprit is not None]
        return sum(bool(row.right_culprit) for row in judged), len(judged)

    @property
    def onset_error(self) -> float | None:
        """Median distance in steps between the labelled and the reported onset."""
        errors = [error for row in self.sick for error in row.onset_errors]
        return median(errors) if errors else None

    def by_check(self) -> dict[str, tuple[int, int, int, int]]:
        """For each fault: false alarms on healthy trials, found, have it, wrongly reported."""
        return {
            name: (
                sum(name in row.reported for row in self.healthy),
                sum(name in row.strong & row.reported for row in self.sick),
                sum(name in row.strong for row in self.sick),
                sum(name in row.wrong for row in self.sick),
            )
            for name in sorted(TAXONOMY.union(*(row.reported for row in self.rows)))
        }


def row_of(trial: Trial) -> Row:
    """Reduce a trial to what is counted."""
    findings = [f for f in trial.diagnosis.everything() if f.severity > Severity.INFO]
    strong = {label.fault: label for label in trial.labels if label.strong}
    weak = frozenset(label.fault for label in trial.labels if not label.strong)
    first = next(iter(trial.diagnosis.at_least(Severity.WARNING)), None)
    right: bool | None = None
    if trial.culprits:
        right = first is not None and bool(first.layers) and first.layers[0] in trial.culprits
    errors = tuple(
        abs(f.first_step - strong[f.check].onset)
        for f in findings
        if f.check in strong and strong[f.check].onset > 0
    )
    return Row(
        trial.family,
        trial.seed,
        trial.sick,
        frozenset(strong),
        weak,
        frozenset(f.check for f in findings),
        f"{first.check} {first.layers[0] if first.layers else '-'}" if first else "",
        right,
        errors,
    )


def measure(job: Job) -> Row:
    """One trial in a process of its own."""
    torch.set_num_threads(1)
    name, seed, length = job
    family = next(f for f in EVERY if f.name == name)
    return replace(row_of(attempt(family, seed, length=Length(length))), length=length)


def score(
    names: Iterable[str],
    seeds: Sequence[int],
    jobs: int = 1,
    length: Length = Length.DEFAULT,
    rows: Path | None = None,
) -> Score:
    """Run every family with every seed.

    `rows` is a file that each finished trial is added to; those that are there are not run again.
    """
    wanted = [(name, seed, length.value) for name in names for seed in seeds]
    done = {} if rows is None else finished(rows)
    for row in _measured([job for job in wanted if job not in done], jobs):
        done[row.job] = row
        if rows is not None:
            with rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row), default=sorted) + "\n")
    return Score([done[job] for job in wanted])


def _measured(work: Sequence[Job], jobs: int) -> Iterator[Row]:
    """The rows as they are finished."""
    if jobs <= 1:
        yield from map(measure, work)
        return
    os.environ["PYTHONSAFEPATH"] = "1"  # or they would first look into the current folder
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure, job) for job in work]):
            yield future.result()


def finished(file: Path) -> dict[Job, Row]:
    """The trials in a file of rows; a line that a killed run left unfinished is taken away."""
    if not file.exists():
        return {}
    text = file.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        write_text(file, whole, overwrite=True)
    rows = [Row(**_sets(json.loads(line))) for line in whole.splitlines()]
    return {row.job: row for row in rows}


def _sets(fields: dict[str, Any]) -> dict[str, Any]:
    """What JSON keeps as lists, as a row has it."""
    sets: dict[str, Callable[[Any], Any]] = dict.fromkeys(("strong", "weak", "reported"), frozenset)
    kinds = sets | {"onset_errors": tuple}
    return {name: kinds.get(name, lambda v: v)(value) for name, value in fields.items()}
