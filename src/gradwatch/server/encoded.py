"""What a page asks of a run, and the answer as bytes that need be sent only where they changed."""

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from starlette.datastructures import QueryParams

from gradwatch.errors import GradwatchError
from gradwatch.views.model import OF_DIAGNOSIS, SECTIONS, ViewModel, to_json
from gradwatch.views.model.titles import shown

MOST_MAPS = 16
KEPT = 16 << 20
"""Bytes of one run's answers that are kept: panning back and forth asks for the same again."""
REMEMBERED = 64
"""Answers of one run whose sections are remembered (not the bytes, only their digests)."""
_STEP = re.compile(r"-?\d{1,15}\Z", re.ASCII)


class BadRequest(ValueError):
    """A request nobody can answer; its text is a sentence for whoever asked."""


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """Steps, maps and sections; equal requests have equal answers while the run stands still."""

    first: int | None = None
    last: int | None = None
    maps: tuple[str, ...] | None = None
    sections: frozenset[str] | None = None
    soon: bool = False
    """Take what is there at once; `coming` in the answer says what is not."""

    @classmethod
    def of(cls, query: QueryParams) -> "ViewRequest":
        """From an address; raises `BadRequest`."""
        sections = query.get("sections")
        names = None if sections is None else frozenset(sections.split(","))
        if names is not None and not names <= frozenset(SECTIONS):
            raise BadRequest("Expected names of sections of the view model.")
        maps = _maps(query.get("maps"))
        soon = query.get("soon") == "1"
        return cls(_step(query.get("first")), _step(query.get("last")), maps, names, soon)

    @property
    def plain(self) -> bool:
        """Whether the answer is the model a report of these steps would hold, or a part of it."""
        return self.maps is None and not self.soon

    @property
    def whole_run(self) -> bool:
        """Whether neither a window nor maps were chosen."""
        return self.first is None and self.last is None and self.maps is None

    @property
    def needs_diagnosis(self) -> bool:
        """Whether one of the wanted sections shows findings."""
        return self.sections is None or bool(self.sections & OF_DIAGNOSIS)


def _step(given: str | None) -> int | None:
    if given is not None and not _STEP.match(given):
        raise BadRequest("Expected whole numbers as first and last step.")
    return None if given is None else int(given)


def _maps(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(dict.fromkeys(given.split(",")))
    if len(names) > MOST_MAPS:
        raise BadRequest(f"Expected at most {MOST_MAPS} maps at once.")
    try:
        return tuple(shown(name).name for name in names)
    except GradwatchError:
        raise BadRequest("Expected names of statistics as maps.") from None


@dataclass(frozen=True)
class EncodedView:
    """Every section's JSON; joined they are the bytes that `to_json` makes of the whole model."""

    sections: Mapping[str, bytes]

    @classmethod
    def of(cls, model: ViewModel) -> "EncodedView":
        """The sections of a model, each as JSON."""
        return cls(_encoded(model.to_dict()))

    @cached_property
    def text(self) -> bytes:
        """The whole answer; kept, so that it is there once however many visitors are sent it."""
        return self.text_of(self.sections)

    @property
    def size(self) -> int:
        """Bytes it takes once it was sent: its sections, and all of them joined."""
        return 2 * sum(map(len, self.sections.values()))

    def text_of(self, names: Collection[str]) -> bytes:
        """The named sections as one object."""
        chosen = [
            b'"%s":%s' % (name.encode(), part)
            for name, part in self.sections.items()
            if name in names
        ]
        return b"{" + b",".join(chosen) + b"}"

    def only(self, names: Collection[str] | None) -> "EncodedView":
        """Just these sections; all of them for None."""
        if names is None:
            return self
        return EncodedView({name: part for name, part in self.sections.items() if name in names})

    def beside(self, name: str, part: Any) -> "EncodedView":
        """With one more section at the end."""
        return EncodedView({**self.sections, **_encoded({name: part})})

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """A short hash of each section, to tell which ones changed."""
        return {name: _digest(part) for name, part in self.sections.items()}

    @cached_property
    def etag(self) -> str:
        """Differs whenever a byte does."""
        parts = b"".join(name.encode() + b" " + digest for name, digest in self.digests.items())
        return _digest(parts).hex()


class SentETags:
    """What pages were sent lately, by ETag, so that the next answer can be the difference."""

    def __init__(self) -> None:
        # No lock: answers are sent, and so remembered, by the event loop alone.
        self._digests: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def remember(self, view: EncodedView) -> None:
        """Note that a page now has this answer; the oldest notes are forgotten."""
        self._digests[view.etag] = view.digests
        self._digests.move_to_end(view.etag)
        while len(self._digests) > REMEMBERED:
            self._digests.popitem(last=False)

    def changed(self, view: EncodedView, since: str) -> frozenset[str] | None:
        """The sections that differ from the answer with the ETag `since`; None where forgotten."""
        before = self._digests.get(since)
        if before is None or list(before) != list(view.sections):
            return None
        return frozenset(name for name, digest in view.digests.items() if before[name] != digest)


class AnswerCache:
    """The last answers of one run, by their kind, the run's mark and the request."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, ViewRequest, str], EncodedView] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, kind: str, mark: str, request: ViewRequest) -> EncodedView | None:
        """The answer made for exactly this state of the run, or None."""
        with self._lock:
            answer = self._answers.get((kind, request, mark))
            if answer is not None:
                self._answers.move_to_end((kind, request, mark))
            return answer

    def newest(self, kind: str, request: ViewRequest) -> EncodedView | None:
        """The same of whatever mark."""
        with self._lock:
            views = [view for key, view in self._answers.items() if key[:2] == (kind, request)]
        return views[-1] if views else None

    def keep(self, kind: str, mark: str, request: ViewRequest, view: EncodedView) -> EncodedView:
        """Store an answer, drop the one unused longest, and hand the new one back."""
        with self._lock:
            self._answers[kind, request, mark] = view
            self._answers.move_to_end((kind, request, mark))
            held = sum(answer.size for answer in self._answers.values())
            while held > KEPT and len(self._answers) > 1:
                held -= self._answers.popitem(last=False)[1].size
        return view


def _encoded(tree: Mapping[str, Any]) -> dict[str, bytes]:
    # a section is encoded as an object of its own, whose braces and key are cut off again
    return {name: to_json({"": part})[4:-1].encode() for name, part in tree.items()}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()
