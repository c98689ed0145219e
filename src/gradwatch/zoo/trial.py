"""One trial: a family and a seed, trained once under the eyes of the witness and the recorder."""

import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.live import watch
from gradwatch.store import open_run
from gradwatch.zoo.criteria import Label, labels
from gradwatch.zoo.recipe import Draw, Recipe
from gradwatch.zoo.training import Training, train
from gradwatch.zoo.witness import Witness


@dataclass(frozen=True)
class Trial:
    """What is true of one training and what was said of it."""

    family: str
    sick: bool
    seed: int
    labels: tuple[Label, ...]
    culprits: tuple[str, ...]
    diagnosis: Diagnosis


def prepare(family: Recipe, seed: int) -> Training:
    """The training of a family and a seed, the same each time."""
    torch.manual_seed(zlib.crc32(f"{family.name}/{seed}".encode()))
    return family.make(Draw(zlib.crc32(f"{seed}/{family.name}".encode())))


def attempt(
    family: Recipe, seed: int, folder: Path | None = None, *, every: int | None = None
) -> Trial:
    """Train once, label from the tensors, diagnose from the recording.

    `every` as in `watch`: None is what users get, with a cadence that follows the clock.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = folder or Path(scratch) / "run"
        training = prepare(family, seed)
        witness = Witness(training)
        watcher = watch(training.model, training.optimizer, run=target, every=every)
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
