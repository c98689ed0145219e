"""JSON of strangers: sized before it is parsed, no key twice, nothing that only Python takes."""

import json
from typing import Any

from gradwatch.errors import GradwatchError

_BRACKETS = 1_000_000


class _Refused(ValueError):
    """Says why; turned into a sentence with the file's name."""


def parse(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object, or a sentence."""
    try:
        if raw.count(b"{") + raw.count(b"[") > _BRACKETS:
            raise _Refused("it has more than a million lists and objects")
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant)
        if not isinstance(found, dict):
            raise _Refused("it is not an object")
    except RecursionError:
        raise GradwatchError(f"{what} is not usable: it is nested too deeply.") from None
    except ValueError as error:
        reason = str(error) if isinstance(error, _Refused) else "it is not valid JSON"
        raise GradwatchError(f"{what} is not usable: {reason}.") from None
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Refused("a key stands there twice")
    return found


def _constant(word: str) -> None:
    raise _Refused(f"it contains {word}")
