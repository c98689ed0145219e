"""What a check says: findings with their evidence, and checks that could not look."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from gradwatch.notebook import cell, items, table
from gradwatch.text import markup, named, number

_COLOURS = {"critical": "#b3261e", "warning": "#8a5a00", "info": "#44546a"}
_MOST_LAYERS = 3
_MOST_EVIDENCE = 8
MOST_FOLLOWING = 20
"""Of each list this many are shown in a notebook: its file should stay small."""
SENTENCE = 400
"""Characters of a sentence shown in a notebook."""


class Severity(IntEnum):
    """How grave a finding is."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        """Lower case, as the command line takes it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number behind a finding, and the series that shows it."""

    stat: str
    """A `Stat` value, or the name of a scalar such as `loss`."""
    subject: str | None
    """Parameter, layer or group the series belongs to; None for a scalar."""
    step: int
    measured: float
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what, where it began, since when, by which evidence, what to try."""

    check: str
    severity: Severity
    layers: tuple[str, ...]
    """Every layer it is about, the one to open first in front; empty for the whole run."""
    first_step: int
    last_step: int
    message: str
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    advice: tuple[str, ...] = ()
    consequences: tuple["Finding", ...] = ()
    tensors: tuple[str, ...] = ()
    """The parameters it is about; empty where it is about all of the layers' parameters."""
    batch: tuple[int | str, ...] = ()
    """Ids of the samples of the first step, where the training logged them (`log(batch=ids)`)."""

    def _repr_html_(self) -> str:
        """What, where, since when; cause and advice; the evidence as a table; what follows."""
        follows = items(item.html_line() for item in self.consequences[:MOST_FOLLOWING])
        return (
            f"<div>{self.html_line()}<br>steps {self.first_step} to {self.last_step}"
            + (f"<br>{markup(self.cause, SENTENCE)}" if self.cause else "")
            + items(markup(text, SENTENCE) for text in self.advice[:_MOST_EVIDENCE])
            + (self._evidence_table() if self.evidence else "")
            + (f"<b>follows from it</b>{follows}" if follows else "")
            + "</div>"
        )

    def html_line(self) -> str:
        """Check, severity, layers and message in one line of HTML."""
        word = self.severity.word
        where = ", ".join(markup(named(layer), 60) for layer in self.layers[:_MOST_LAYERS])
        rest = len(self.layers) - _MOST_LAYERS
        return (
            f'<b style="color:{_COLOURS[word]}">{markup(self.check, 60)}</b> ({word}) '
            f"<code>{where}</code>{f' and {rest} more' if rest > 0 else ''} "
            f"{markup(self.message, SENTENCE)}"
        )

    def _evidence_table(self) -> str:
        rows = (
            (
                markup(item.stat, 60),
                markup(item.subject or "run", 60),
                str(item.step),
                number(item.measured),
                "–" if item.limit is None else number(item.limit),
            )
            for item in self.evidence[:_MOST_EVIDENCE]
        )
        heads = ("measured", "where", "step", "value", "limit")
        return table(heads, ([cell(text, left=False) for text in row] for row in rows))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; `from_dict` brings it back."""
        data = {name: getattr(self, name) for name in self.__slots__}
        data |= {name: list(value) for name, value in data.items() if isinstance(value, tuple)}
        data["severity"] = self.severity.word
        data["evidence"] = [asdict(item) for item in self.evidence]
        data["consequences"] = [item.to_dict() for item in self.consequences]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Finding":
        """The finding that `to_dict` wrote."""
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        values: dict[str, Any] = {**data, **lists}
        values["severity"] = Severity[data["severity"].upper()]
        values["evidence"] = tuple(Evidence(**item) for item in data["evidence"])
        values["consequences"] = tuple(map(cls.from_dict, data["consequences"]))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A check that could not look; never to be mistaken for a healthy result."""

    check: str
    reason: str
