"""A monitor that sends a few numbers of every step on to a service, around the one that judges."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.forward import Outbox
from gradwatch.record import StepMonitor, StepRows
from gradwatch.run import Subject
from gradwatch.stats import Family, Stat

FORWARDED = ("loss", "val_loss", "clip_factor")


class Forwarding:
    """Passes everything to the monitor inside, and a few numbers to the outbox."""

    def __init__(self, inner: StepMonitor) -> None:
        self._outbox: Outbox | None = None
        self._inner = inner
        self._values: dict[str, float] = {}
        self._step = 0

    def open(self, outbox: Outbox) -> None:
        """From now on numbers are sent."""
        self._outbox = outbox

    def finding(self, step: int, check: str, message: str) -> None:
        """Told by the monitor inside, or by whoever judges."""
        if self._outbox is not None:
            self._outbox.finding(step, check, message)

    @property
    def should_stop(self) -> bool:
        return self._inner.should_stop

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        self._inner.declared(subjects, ids)

    def noted(self, info: Mapping[str, Any]) -> None:
        self._inner.noted(info)

    def after_step(self, step: int, rows: Sequence[StepRows], scalars: Mapping[str, float]) -> None:
        self._inner.after_step(step, rows, scalars)
        self._step = step
        self._values = {f"gradwatch/{k}": scalars[k] for k in FORWARDED if k in scalars}
        for batch in rows:
            self._values.update(summary(batch))
        if self._outbox is not None:
            self._outbox.numbers(step, self._values)

    def close(self) -> None:
        self._inner.close()
        if self._outbox is not None:
            if self._values:
                self._outbox.numbers(self._step, self._values, last=True)
            self._outbox.close()


def summary(batch: StepRows) -> dict[str, float]:
    """One or two numbers of a family: what a chart beside the loss has room for."""
    if batch.family is Family.GRAD:
        norms = batch.rows[Stat.GRAD_NORM]
        bad = batch.rows[Stat.GRAD_NAN].sum() + batch.rows[Stat.GRAD_INF].sum()
        total = float(np.sqrt(np.nansum(norms**2)))
        return {"gradwatch/grad_norm": total, "gradwatch/grad_nonfinite": float(bad)}
    if batch.family is Family.UPDATE:
        ratios = batch.rows[Stat.UPDATE_RATIO]
        finite = ratios[np.isfinite(ratios)]
        return {"gradwatch/update_ratio": float(np.median(finite))} if len(finite) else {}
    return {}
