"""The definitions of faults of loops with several losses or targets of their own making.

- overpowering-discriminator: starts are medians of the first five steps, ends of the last tenth;
  a loss rises through the second half if each third of it is above the one before, by 5 % in all.
- divergence, of a loss whose level means nothing: the last five values are, up or down, 20 times
  the first five (of one at least); 5 times is weak.
- moving-targets: an information, so never strong.
"""

from collections.abc import Iterator
from statistics import median

from gradwatch.zoo.witness import Label, Witness, end, finite

JUDGE, MAKER = "d_loss", "g_loss"
"""What the turns of adversarial trainings are called."""


def _change(values: list[float]) -> float:
    """The last tenth of a list against its first five values."""
    start = median(values[:5])
    return median(values[-max(1, len(values) // 10) :]) / start if start else 1.0


def _rises(values: list[float]) -> bool:
    """Whether a loss goes up and up in the second half."""
    half = values[len(values) // 2 :]
    third = len(half) // 3
    if third < 3:
        return False
    a, b, c = (median(half[i * third : (i + 1) * third]) for i in range(3))
    return a < b < c and c - a > 0.05 * abs(a)


def overpowering(seen: Witness) -> Iterator[Label]:
    """A discriminator that is always right, so that the generator learns nothing from it."""
    judge, maker = (finite(seen.by_turn.get(name, [])) for name in (JUDGE, MAKER))
    if end(seen) < 20 or not judge or not maker or median(judge[:5]) <= 0:
        return
    moved = [
        seen.gradients[n] for n, p in seen.parameters.items() if seen.owner.get(id(p)) == MAKER
    ]
    totals = [sum(v * v for v in finite(row)) ** 0.5 for row in zip(*moved, strict=False)]
    left, pull, rising = _change(judge), _change(totals), _rises(maker)
    if 0 <= left <= 0.05 and (pull <= 0.01 or rising):
        yield Label("overpowering-discriminator", True)
    elif 0 <= left <= 0.2 and (pull <= 0.1 or rising):
        yield Label("overpowering-discriminator", False)


def runaway(seen: Witness) -> Iterator[Label]:
    """A loss without a level that grows and grows, above or below zero."""
    worst, onset = 0.0, 0
    for values in seen.by_turn.values() if not seen.training.level else ():
        sizes = [abs(value) for value in finite(values)]
        start = max(1.0, median(sizes[:5])) if sizes else 1.0
        if len(sizes) >= 20 and median(sizes[-5:]) / start > worst:
            worst = median(sizes[-5:]) / start
            onset = next((i for i, size in enumerate(sizes) if size > 2 * start), 0)
    if worst >= 5:
        yield Label("divergence", worst >= 20, frozenset(), onset if worst >= 20 else 0)


def moving(seen: Witness) -> Iterator[Label]:
    """What the loss aims at changes with the network on every step."""
    flags = seen.training.moving
    if flags and sum(flags) >= 0.95 * len(flags):
        yield Label("moving-targets", False)


OUTCOME = (overpowering, runaway, moving)
