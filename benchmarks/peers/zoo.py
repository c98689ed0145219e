"""Every diagnoser on the same labelled trainings: the half of the zoo kept for reporting.

A training is repeated from its seed once for each diagnoser, because their hooks do not go
together (torch refuses two kinds of backward hook on one module). Labels come from the tensors.
A warning is right if a name we hold it for is a label, wrong if none is even weakly true. Losses
are held against a training nobody watched, so that one who changes it is seen.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.diagnosers import Diagnoser, available, quiet
from benchmarks.peers.names import TABLES, Names, claims
from gradwatch.zoo.families import half
from gradwatch.zoo.score import TAXONOMY, Row, attempt, prepare, row_of
from gradwatch.zoo.training import Training, Turn, ZooFamily, train

OURS = "gradwatch"
OUR_TABLE: Names = {name: (name,) for name in TAXONOMY}


@dataclass
class Tally:
    """What one diagnoser said, training by training."""

    table: Names
    said: list[tuple[Row, frozenset[str]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, row: Row, words: set[str] | frozenset[str]) -> None:
        self.said.append((row, frozenset(words)))

    def names(self, words: frozenset[str]) -> frozenset[str]:
        return frozenset(name for word in words for name in self.table.get(word, ()))

    @property
    def sick(self) -> list[tuple[Row, frozenset[str]]]:
        return [(row, words) for row, words in self.said if row.sick and row.strong]

    @property
    def healthy(self) -> list[frozenset[str]]:
        return [words for row, words in self.said if not row.sick and not row.strong]

    def counts(self) -> tuple[int, int, int, int]:
        """Labels found, labels there are, labels it claims to know, warnings that are wrong."""
        hits = there = claimed = wrong = 0
        known = claims(self.table)
        for row, words in self.sick:
            hits += len(row.strong & self.names(words))
            there += len(row.strong)
            claimed += len(row.strong & known)
            true = row.strong | row.weak
            wrong += sum(not true & set(self.table.get(w, true)) for w in words if self.counted(w))
        return hits, there, claimed, wrong

    def counted(self, word: str) -> bool:
        """Whether the taxonomy has something like it."""
        return bool(self.table.get(word))

    def alarms(self, *, counted: bool) -> int:
        """Healthy trainings with a warning (of something the taxonomy knows)."""
        return sum(any(self.counted(w) or not counted for w in words) for words in self.healthy)


class Ledger:
    """Keeps the losses of a training."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def begin_step(self, step: int, turn: Turn) -> None:
        """Nothing to see yet."""

    def before_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        self.losses.append(loss.item())

    def after_step(self, step: int, loss: Tensor, turn: Turn) -> None:
        """The loss is known already."""

    def end_step(self, step: int, validation: float | None, numbers: Mapping[str, float]) -> None:
        """Nor is anything else of interest."""


def main(families: int | None, seeds: Sequence[int], *, verbose: bool = False) -> None:
    torch.set_num_threads(1)
    quiet()
    makers, missing = available()
    tallies = {name: Tally(TABLES[name]) for name in makers}
    tallies[OURS] = Tally(OUR_TABLE)
    chosen = spread(half("report"), families)
    began = time.perf_counter()
    with elsewhere():
        for family in chosen:
            for seed in seeds:
                one(family, seed, tallies, makers, verbose=verbose)
    print(f"{len(chosen)} families × {len(seeds)} seeds, {time.perf_counter() - began:.0f} s")
    for line in table(tallies, missing):
        print(line)


def spread(families: Sequence[ZooFamily], at_most: int | None) -> Sequence[ZooFamily]:
    """Evenly over the list, so that sick and healthy keep their shares."""
    if at_most is None or at_most >= len(families):
        return families
    return [families[i * len(families) // at_most] for i in range(at_most)]


@contextmanager
def elsewhere() -> Iterator[None]:
    """In a folder that goes away: some of them write files where they stand."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)


def one(
    family: ZooFamily,
    seed: int,
    tallies: Mapping[str, Tally],
    makers: Mapping[str, object],
    *,
    verbose: bool,
) -> None:
    """One training, repeated for everyone."""
    began = time.perf_counter()
    row = row_of(attempt(family, seed))
    tallies[OURS].seconds += time.perf_counter() - began
    tallies[OURS].add(row, row.reported)
    alone = Ledger()
    train(prepare(family, seed), [alone])
    if verbose:
        print(f"{family.name} {seed}: {', '.join(sorted(row.strong)) or 'healthy'}")
    for name, make in makers.items():
        tally = tallies[name]
        began = time.perf_counter()
        ledger = Ledger()
        try:
            words = watched(prepare(family, seed), make, ledger)
        except Exception as error:  # whatever it raises in somebody's training loop
            tally.broken.append(f"{family.name}: {type(error).__name__}: {error}")
            words = set()
        else:
            if not np.array_equal(ledger.losses, alone.losses, equal_nan=True):
                tally.changed.append(family.name)
        tally.seconds += time.perf_counter() - began
        tally.add(row, words)
    if verbose:
        for name, tally in tallies.items():
            print(f"  {name:<20} {', '.join(sorted(tally.said[-1][1])) or 'nothing'}")


def watched(training: Training, make: object, ledger: Ledger) -> set[str]:
    assert callable(make)
    diagnoser: Diagnoser = make(training)
    train(training, [diagnoser, ledger])
    return diagnoser.said()


def table(tallies: Mapping[str, Tally], missing: Mapping[str, str]) -> list[str]:
    """Figures of each, then what each does not claim, and what it said wrongly."""
    out = [
        f"{'':20}{'precision':>10}{'recall':>8}{'of claimed':>12}{'F1':>7}"
        f"{'healthy warned':>16}{'of a fault':>12}{'broke':>7}{'changed':>9}{'seconds':>9}"
    ]
    for name, tally in sorted(tallies.items(), key=lambda item: item[0] != OURS):
        hits, there, claimed, wrong = tally.counts()
        healthy = len(tally.healthy)
        out.append(
            f"{name:20}{hits / max(1, hits + wrong):10.2f}{hits / max(1, there):8.2f}"
            f"{hits / max(1, claimed):12.2f}"
            f"{2 * hits / max(1, hits + there + wrong):7.2f}"
            f"{f'{tally.alarms(counted=False)} of {healthy}':>16}"
            f"{f'{tally.alarms(counted=True)} of {healthy}':>12}"
            f"{len(tally.broken):7}{len(tally.changed):9}{tally.seconds:9.0f}"
        )
    out += [f"{name:20} left out: {why}" for name, why in missing.items()]
    for name, tally in tallies.items():
        if name != OURS:
            out += ["", *remarks(name, tally)]
    return out


def remarks(name: str, tally: Tally) -> list[str]:
    """What a reader should know beside the figures."""
    healthy = Counter(word for words in tally.healthy for word in words)
    often = ", ".join(f"{word} {count}" for word, count in healthy.most_common(5))
    out = [
        f"{name} does not claim: {', '.join(sorted(TAXONOMY - claims(tally.table)))}",
        f"  said of healthy trainings: {often or 'nothing'}",
    ]
    unknown = {w for _, words in tally.said for w in words} - set(tally.table)
    if unknown:
        out.append(f"  not in our table: {', '.join(sorted(unknown))}")
    return out + [f"  broke {what}" for what in tally.broken[:3]]
