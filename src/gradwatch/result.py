"""What every analysis hands back: a frozen dataclass that one generic function turns into JSON.

A value that could not be measured is None, and says why: hand `missing("reason")` to the
constructor, and the field reads as None while `result.missing["field"]` holds the sentence. In JSON
the field is null and the reasons stand beside it under `missing`.
"""

import dataclasses
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Self

import numpy as np

import gradwatch.jsonio as jsonio
from gradwatch.jsonio import loads as loads
from gradwatch.notebook import as_html


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """Stands for a value that could not be measured; never to be mistaken for a number."""

    reason: str


def missing(reason: str) -> Any:
    """`Missing(reason)`, typed so that it may be handed to any optional field of a `Result`."""
    return Missing(reason)


class AdviceCode(StrEnum):
    """A code that results hold and JSON shows; the sentence that says what to do hangs on it."""

    advice: str

    def __new__(cls, code: str, advice: str) -> Self:
        """The code is the member's value; the advice hangs on it as an attribute."""
        member = str.__new__(cls, code)
        member._value_, member.advice = code, advice
        return member


class Result:
    """Mixin of frozen dataclasses (without slots): reasons for what is None, and plain JSON.

    A subclass with a `__post_init__` of its own calls `Result.__post_init__(self)`.
    """

    missing: Mapping[str, str]
    """Name of the field → why it is None."""

    def __post_init__(self) -> None:
        # There can be a million results of one analysis: most have nothing missing.
        values = self.__dict__
        reasons = {name: v.reason for name, v in values.items() if type(v) is Missing}
        for name in reasons:
            values[name] = None  # not through __setattr__, which a frozen dataclass refuses
        values["missing"] = reasons

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, strings, numbers, None. NaN and Inf stay floats: `dumps` spells them."""
        return _from_fields(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def plain(value: Any) -> Any:
    """Any value of a result as plain Python; a lone `Missing` becomes None."""
    return _plain(value, "", {})


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON of a result, or of anything `plain` takes."""
    return jsonio.dumps(plain(value), indent=indent)


def _from_fields(result: Any) -> dict[str, Any]:
    reasons = dict(getattr(result, "missing", {})) if isinstance(result, Result) else {}
    tree = {
        field.name: _plain(getattr(result, field.name), field.name, reasons)
        for field in dataclasses.fields(result)
    }
    if reasons:
        tree["missing"] = reasons
    return tree


def _plain(value: Any, path: str, reasons: dict[str, str]) -> Any:
    """`reasons` collects what is missing inside the lists and maps of the enclosing dataclass."""
    if isinstance(value, Missing):
        reasons[path] = value.reason
        return None
    if isinstance(value, Result):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _from_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {
            _key(key): _plain(item, f"{path}.{_key(key)}", reasons) for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        listed = sorted(value) if isinstance(value, set | frozenset) else value
        return [_plain(item, f"{path}[{i}]", reasons) for i, item in enumerate(listed)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"A result may not hold a {type(value).__name__}: it has no plain form.")


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)
