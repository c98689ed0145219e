"""What a page asks of a run: which steps, which maps, which sections, and how soon."""

import re
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from gradwatch.errors import GradwatchError
from gradwatch.views.model import shown

SECTIONS = (
    "format", "run", "window", "health", "findings", "timeline", "skipped", "scalars",
    "nonfinite_loss", "learning_rates", "ranks", "layers", "tensors", "heat", "updates", "flow",
    "ridges", "events", "cost", "unseen", "signals",
)  # fmt: skip
"""The keys of the view model, in its order."""
OF_DIAGNOSIS = frozenset({"health", "findings", "timeline", "skipped", "ranks", "layers", "ridges"})
"""Sections that cannot be told before the diagnosis is there."""
MOST_MAPS = 16
_WHOLE = re.compile(r"-?\d{1,15}\Z", re.ASCII)


class BadWish(ValueError):
    """A question nobody can answer; its text is a sentence for whoever asked."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One question; equal questions have equal answers as long as the run stands still."""

    first: int | None = None
    last: int | None = None
    maps: tuple[str, ...] | None = None
    sections: frozenset[str] | None = None
    soon: bool = False
    """Take what is there at once; `coming` in the answer says what is not."""

    @classmethod
    def of(cls, query: QueryParams) -> "Wish":
        return cls(
            _step(query, "first"),
            _step(query, "last"),
            _maps(query.get("maps")),
            _sections(query.get("sections")),
            query.get("soon") == "1",
        )

    @property
    def plain(self) -> bool:
        """Whether the answer is the model a report of these steps would hold, or a part of it."""
        return self.maps is None and not self.soon

    @property
    def waits(self) -> bool:
        """Whether the diagnosis is part of the answer."""
        return self.sections is None or bool(self.sections & OF_DIAGNOSIS)


def _step(query: QueryParams, name: str) -> int | None:
    given = query.get(name)
    if given is None:
        return None
    if not _WHOLE.match(given):
        raise BadWish("Expected whole numbers as first and last step.")
    return int(given)


def _maps(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(dict.fromkeys(given.split(",")))
    if len(names) > MOST_MAPS:
        raise BadWish(f"Expected at most {MOST_MAPS} maps at once.")
    try:
        return tuple(shown(name).name for name in names)
    except GradwatchError:
        raise BadWish("Expected names of statistics as maps.") from None


def _sections(given: str | None) -> frozenset[str] | None:
    if given is None:
        return None
    names = frozenset(given.split(","))
    if not names <= frozenset(SECTIONS):
        raise BadWish("Expected names of sections of the view model.")
    return names
