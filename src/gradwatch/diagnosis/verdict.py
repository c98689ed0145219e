"""The one answer to "how is this layer?": what the findings of a diagnosis say about each.

Checks judge and nobody else does. Analyses, animator, regions, heat maps and pages ask here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from gradwatch.checks.limits import Trouble
from gradwatch.diagnosis.diagnose import Diagnosis, diagnose
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run

TROUBLES: Mapping[str, Trouble] = {
    "nonfinite": Trouble.NON_FINITE,
    "nonfinite-weights": Trouble.NON_FINITE,
    "no-gradient": Trouble.DEAD,
    "exploding-gradient": Trouble.EXPLODING,
    "vanishing-gradient": Trouble.VANISHING,
}
"""Check → the kind of trouble it judges; other checks have no such word."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says of one layer or tensor."""

    check: str
    severity: Severity
    first_step: int
    last_step: int

    @property
    def trouble(self) -> Trouble | None:
        """Its kind, where it is one of those every door speaks of."""
        return TROUBLES.get(self.check)


class Verdicts:
    """What a diagnosis says of each layer and each tensor, gravest first."""

    def __init__(self, run: Run, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        self._owners = {subject.name: subject.layer for subject in run.parameters}

    @cached_property
    def by_layer(self) -> Mapping[str, tuple[Verdict, ...]]:
        """Layer → everything said of it; layers of which nothing is said are left out."""
        return _collected(
            (layer, item) for item in self.diagnosis.everything() for layer in item.layers
        )

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Verdict, ...]]:
        """Tensor → everything said of it; a finding without tensors is about all of its layers'."""
        members: dict[str, list[str]] = {}
        for name, layer in self._owners.items():
            members.setdefault(layer, []).append(name)
        return _collected(
            (name, item)
            for item in self.diagnosis.everything()
            for name in item.tensors or [n for layer in item.layers for n in members.get(layer, ())]
        )

    def layers_with(self, trouble: Trouble) -> dict[str, Verdict]:
        """The layers that have this trouble at warning or above, each with the gravest verdict."""
        return {
            layer: verdict
            for layer, items in self.by_layer.items()
            for verdict in reversed(items)  # the gravest stands in front and is put in last
            if verdict.severity >= Severity.WARNING and verdict.trouble is trouble
        }

    def severity(self, layer: str) -> Severity | None:
        """The gravest word about a layer, whatever the kind; None where nothing is said."""
        return max((item.severity for item in self.by_layer.get(layer, ())), default=None)

    def tensor_severity(self, name: str) -> Severity | None:
        """The gravest word about a tensor; None where nothing is said."""
        return max((item.severity for item in self.by_tensor.get(name, ())), default=None)

    def troubles(self, layer: str) -> tuple[Trouble, ...]:
        """The kinds of trouble a layer has at warning or above, gravest first, each once."""
        said = (
            item.trouble
            for item in self.by_layer.get(layer, ())
            if item.severity >= Severity.WARNING and item.trouble is not None
        )
        return tuple(dict.fromkeys(said))


def verdicts(run: Run, diagnosis: Diagnosis | None = None) -> Verdicts:
    """The verdicts on a run, judged once and kept while the run lives.

    A `diagnosis` made already is taken instead, and kept: whoever asks next gets the same.
    """
    known = _VERDICTS.get(run)
    if known is None or (diagnosis is not None and known.diagnosis is not diagnosis):
        known = _VERDICTS[run] = Verdicts(run, diagnosis or diagnose(run))
    return known


_VERDICTS: "WeakKeyDictionary[Run, Verdicts]" = WeakKeyDictionary()


def _collected(said: Iterable[tuple[str, Finding]]) -> dict[str, tuple[Verdict, ...]]:
    by_name: dict[str, list[Verdict]] = {}
    for name, item in said:
        verdict = Verdict(item.check, item.severity, item.first_step, item.last_step)
        by_name.setdefault(name, []).append(verdict)
    return {
        name: tuple(sorted(items, key=lambda item: -item.severity))
        for name, items in by_name.items()
    }
