"""Steps that only the user can tell: an optimizer of another library, an update by hand."""

from collections.abc import Callable

from gradwatch.record import measuring
from gradwatch.record.frame import Frame
from gradwatch.record.measuring import Measured
from gradwatch.record.recorder import Recorder
from gradwatch.record.roster import Roster
from gradwatch.stats import Family


class ManualSteps:
    """Nobody calls us before such an update: what must be read before it is read a step early."""

    def __init__(self, recorder: Recorder, roster: Roster) -> None:
        self._recorder = recorder
        self._roster = roster
        self._weights: Measured | None = None
        self._far_weights: Callable[[object], None] | None = None
        """The same on accelerators: sends off what was measured there."""

    def prepare(self, step: int, due: frozenset[Family]) -> None:
        """Between two steps: the weights as they are before the update of `step`."""
        rest = self._roster.rest
        self.forget()
        if rest.tracks and rest.remote:
            self._prepare_far(step, due)
            return
        if rest.tracks and Family.WEIGHT in due:
            self._weights = measuring.weights(rest, histograms=self._recorder.histograms)
        if rest.tracks and Family.UPDATE in due:
            rest.copies.take(rest.parameters())

    def _prepare_far(self, step: int, due: frozenset[Family]) -> None:
        rest, remote = self._roster.rest, self._recorder.remote
        if Family.WEIGHT in due:
            self._far_weights = remote.weigh(step, rest, histograms=self._recorder.histograms)
        if Family.UPDATE in due:
            remote.take(rest)

    def forget(self) -> None:
        """A torch optimizer has turned up: its hooks will see to everything."""
        self._weights = self._far_weights = None
        self._roster.rest.copies.drop()
        self._recorder.remote.drop(self._roster.rest)

    def measure(self, step: int, due: frozenset[Family], full: bool) -> None:
        """The update of `step` is done: gradients, weights before it, what it changed."""
        if self._far_weights is not None:
            self._far_weights(None)
        for ward in self._roster.all:
            if ward.tracks:
                frame = Frame(ward, step, due, full, closure=True)
                frame.collects = ward is self._roster.rest
                if ward is self._roster.rest and self._weights is not None:
                    frame.measured.append((ward, self._weights))
                self._recorder.after(frame)
                ward.sentinel.stepped()
        self._weights = self._far_weights = None
