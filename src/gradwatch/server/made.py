"""A view model as bytes, section by section, so that only what changed need be sent again."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradwatch.views.model import to_json

KNOWN = 64
"""Answers of one run whose sections are remembered (not the bytes, only their digests)."""


@dataclass(frozen=True)
class Made:
    """Every section's JSON; joined they are the bytes that `to_json` makes of the whole model."""

    sections: Mapping[str, bytes]

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "Made":
        # a section is told as an object of its own, whose braces and key are cut off again
        return cls({name: to_json({"": part})[4:-1].encode() for name, part in model.items()})

    def text(self, names: Collection[str] | None = None) -> bytes:
        """The model, or the named sections of it."""
        return self._whole if names is None else self._joined(names)

    @cached_property
    def _whole(self) -> bytes:
        """Kept: however many visitors are sent it, it is there once."""
        return self._joined(None)

    def _joined(self, names: Collection[str] | None) -> bytes:
        chosen = [
            b'"%s":%s' % (name.encode(), part)
            for name, part in self.sections.items()
            if names is None or name in names
        ]
        return b"{" + b",".join(chosen) + b"}"

    def only(self, names: Collection[str] | None) -> "Made":
        if names is None:
            return self
        return Made({name: part for name, part in self.sections.items() if name in names})

    def beside(self, name: str, part: Any) -> "Made":
        """With one more section at the end."""
        return Made({**self.sections, **Made.of({name: part}).sections})

    @property
    def parsed(self) -> dict[str, Any]:
        """The sections as plain objects again."""
        found: dict[str, Any] = json.loads(self.text())
        return found

    @cached_property
    def digests(self) -> dict[str, bytes]:
        return {name: _digest(part) for name, part in self.sections.items()}

    @cached_property
    def tag(self) -> str:
        """Differs whenever a byte does."""
        told = b"".join(name.encode() + b" " + part for name, part in self.digests.items())
        return _digest(told).hex()


class Told:
    """What pages were given lately, by tag, so that the next answer can be the difference."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def remember(self, made: Made) -> None:
        self._digests[made.tag] = made.digests
        self._digests.move_to_end(made.tag)
        while len(self._digests) > KNOWN:
            self._digests.popitem(last=False)

    def changed(self, made: Made, since: str) -> frozenset[str] | None:
        """The sections that differ from what `since` was given; None where that is not known."""
        known = self._digests.get(since)
        if known is None or list(known) != list(made.sections):
            return None
        return frozenset(n for n, digest in made.digests.items() if known[n] != digest)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12).digest()
