"""Which optimizer steps which parameter, and which weights stay as they are: for several checks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradwatch.checks.context import CheckContext, Mask
from gradwatch.run import Run
from gradwatch.stats import HAS_VALUE, Stat


def handed(ctx: CheckContext) -> Mask:
    """Parameters that an optimizer steps."""
    return np.array([p.group is not None for p in ctx.parameters], bool)


def optimizers(run: Run) -> list[Mapping[str, Any]]:
    """What the recorder noted of each optimizer; what has another form is left out."""
    noted = run.info.get("optimizers")
    return [item for item in noted if _is_entry(item)] if isinstance(noted, list) else []


def _is_entry(item: object) -> bool:
    return (
        isinstance(item, Mapping)
        and isinstance(item.get("optimizer"), str)
        and all(isinstance(item.get(name), int) for name in ("parameters", "foreign"))
        and isinstance(item.get("groups"), list)
        and all(isinstance(group, Mapping) for group in item["groups"])
    )


def foreign_optimizers(run: Run) -> list[int]:
    """Positions, from 0, of the optimizers that hold parameters, but none of the model's."""
    noted = enumerate(optimizers(run))
    return [at for at, item in noted if 0 < item["parameters"] <= item["foreign"]]


def silent_optimizers(run: Run) -> list[Mapping[str, Any]]:
    """What the recorder noted of those that never stepped although they have gradients."""
    noted = run.info.get("silent_optimizers")
    return [item for item in noted if isinstance(item, Mapping)] if isinstance(noted, list) else []


def left_alone(ctx: CheckContext) -> Mask:
    """Parameters of optimizers that never stepped, unless they were seen to change."""
    held = [item.get("parameters") for item in silent_optimizers(ctx.run)]
    names = {name for some in held if isinstance(some, list) for name in some}
    alone = np.array([p.name in names for p in ctx.parameters], bool)
    if Stat.UPDATE_NORM in ctx.run.recorded:  # another optimizer has them too
        alone &= ~ctx.counted(Stat.UPDATE_NORM).any(axis=0)
    return alone


def unchanged(ctx: CheckContext, least: int = 3) -> Mask | None:
    """Whether each parameter's bits are what they were; None where it cannot be known."""
    rows = ctx.rows(Stat.WEIGHT_HASH)
    # Of rows that `keep` removed there is no hash: then updates tell.
    whole = len(rows) >= 2 and not (ctx.rows(Stat.WEIGHT_NORM) < rows[0]).any()
    if whole and ctx.steps[rows[-1]] - ctx.steps[rows[0]] >= least:
        bits = ctx.run.integers(Stat.WEIGHT_HASH)
        there = HAS_VALUE[ctx.run.states_at(Stat.WEIGHT_HASH, rows)]
        first, last = there.argmax(axis=0), len(rows) - 1 - there[::-1].argmax(axis=0)
        columns = np.arange(bits.shape[1])
        equal = bits[rows[first], columns] == bits[rows[last], columns]
        return np.asarray(equal & (last > first), bool)
    rows = ctx.rows(Stat.UPDATE_NORM)
    if len(rows) >= least:
        values = ctx.values(Stat.UPDATE_NORM, rows)
        enough = np.isfinite(values).sum(axis=0) >= least
        return np.asarray(enough & np.all(np.nan_to_num(values) == 0, axis=0), bool)
    return None
