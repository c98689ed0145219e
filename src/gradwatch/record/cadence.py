"""When a family is due: powers of two of the step number, stretched by `k`."""

from collections.abc import Iterable

from gradwatch.stats import Cadence, Family

OPENING = 10
"""The first steps record everything."""

_FACTOR = {Cadence.STEP: 1, Cadence.K: 1, Cadence.K4: 4, Cadence.K16: 16}


def due(step: int, families: Iterable[Family], *, k: int, every: int | None) -> frozenset[Family]:
    """The families to record on this step.

    With `every` everything is recorded on its multiples. Otherwise what ranks record depends on
    the step number and a power of two alone, so ranks that stretch
    differently share the coarser ones.
    """
    if every is not None:
        return frozenset(families) if step % every == 0 else _NOTHING
    if step < OPENING:
        return frozenset(families)
    if step % k:
        return _NOTHING
    turn = step // k
    return frozenset(f for f in families if turn % _FACTOR[f.cadence] == 0)


def quiet(step: int, *, k: int, every: int | None) -> int:
    """How many steps from this one on record nothing."""
    period = k if every is None else every
    return 0 if every is None and step < OPENING else -step % period


def full(step: int, *, k: int, every: int | None) -> bool:
    """Whether this step also takes histograms and looks at the model's parameters anew."""
    if every is not None:
        return step % every == 0
    return step < OPENING or step % (16 * k) == 0


def sketched(step: int, *, k: int, every: int | None) -> tuple[bool, bool]:
    """Whether the gradients are sketched on this step, and whether the cosine to the last is taken.

    On disk a sketch takes more room than all other statistics of a gradient together. Two
    neighbouring recorded steps out of four have one, so that a cosine is one between neighbours.
    """
    if every is not None or step < OPENING:
        return True, True
    turn = step // k % 4
    return turn in (0, 3), turn == 0


_NOTHING: frozenset[Family] = frozenset()
