"""What every analysis hands back: a frozen dataclass that becomes JSON and comes back from it.

A value that could not be measured is None, and says why: hand `missing("reason")` to the
constructor, and the field reads as None while `result.missing["field"]` holds the sentence. In JSON
the field is null and the reasons stand beside it under `missing`.

How a class is written and read follows from the types of its fields alone. Both ways are worked out
once per class, so that a million numbers are copied and not looked at one by one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from functools import cache
from itertools import cycle
from operator import attrgetter, methodcaller
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

import gradwatch.jsonio as jsonio
from gradwatch.errors import Exit, GradwatchError
from gradwatch.notebook import as_html, as_line, as_outline
from gradwatch.text import shortened


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


_REPLACED = frozenset({*np.sctypeDict.values(), Missing})
"""Types of values that a result is handed but does not keep."""


@dataclass_transform(frozen_default=True)
class Result:
    """Base of what analyses hand back: every subclass is a frozen dataclass (without slots).

    It gives reasons for what is None, and JSON both ways. Two are equal if they have the same type,
    fields and reasons; NaN equals NaN. A subclass with a `__post_init__` of its own calls
    `Result.__post_init__(self)`.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    missing: Mapping[str, str]
    """Name of the field → why it is None."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        # There can be a million results of one analysis: most have nothing missing.
        values = self.__dict__
        reasons = {}
        for name in [name for name, value in values.items() if type(value) in _REPLACED]:
            value = values[name]
            # Not through __setattr__, which a frozen dataclass refuses.
            if type(value) is Missing:
                values[name], reasons[name] = None, value.reason
            else:
                values[name] = value.item()
        values["missing"] = reasons

    def __eq__(self, other: object) -> bool:
        return _same(self, other) if isinstance(other, Result) else NotImplemented

    def __hash__(self) -> int:
        # Of texts alone: NaN has a new hash each time, and lists of layers cost too much.
        return hash((type(self), *(v for v in self.__dict__.values() if isinstance(v, str))))

    def __repr__(self) -> str:
        return as_line(self)

    def __str__(self) -> str:
        return as_outline(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, strings, numbers, None. NaN and Inf stay floats: `to_json` spells them."""
        kind: type = type(self)
        names, converted = _writers(kind)
        values = self.__dict__
        tree = {name: values[name] for name in names}
        for name, write in converted:
            tree[name] = write(values[name])
        if values["missing"]:
            tree["missing"] = dict(values["missing"])
        return tree

    def to_json(self, indent: int | None = None) -> str:
        """Strict JSON; NaN and Inf are the texts "NaN", "Infinity" and "-Infinity"."""
        return jsonio.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The result whose `to_dict` gave `data`."""
        try:
            result: Self = _read(cls, data)
        except _Unfit as unfit:
            raise GradwatchError(
                f"Expected the data of a {cls.__name__}, as to_dict gives it, "
                f"with {unfit.expected} at {unfit.place or 'the top'}, got {unfit.seen}.",
                Exit.USAGE,
            ) from None
        return result

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The result whose `to_json` gave `text`."""
        try:
            data = jsonio.loads(text)
        except (ValueError, RecursionError) as error:
            raise GradwatchError(
                f"Expected the JSON of a {cls.__name__}, as to_json gives it, got text that is "
                f"not JSON: {error}.",
                Exit.USAGE,
            ) from None
        return cls.from_dict(data)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Result):
        if type(one) is not type(other):
            return False
        kind: type = type(one)
        mine, theirs = one.__dict__, other.__dict__
        return all(_same(mine[name], theirs[name]) for name in (*_hints(kind), "missing"))
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(item, other[key]) for key, item in one.items())
        )
    if isinstance(one, tuple) and isinstance(other, tuple):
        if type(other) is not tuple or len(one) != len(other):
            return False
        numbers = bool(one) and not isinstance(one[0], Result)
        return (numbers and one == other) or all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)


# -- how the type of a field is written and read ---------------------------------------------------

_Convert = Callable[[Any], Any]
_PLAIN = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
"""Types that stand in JSON as they are."""


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@cache
def _writers(cls: type) -> tuple[tuple[str, ...], tuple[tuple[str, _Convert], ...]]:
    """The names of all fields; those whose values are not plain yet, with what makes them so."""
    made = ((name, _writer(hint)) for name, hint in _hints(cls).items())
    return tuple(_hints(cls)), tuple((name, write) for name, write in made if write)


def _writer(hint: Any) -> _Convert | None:
    """What makes a value of this type plain; None where it is."""
    kind, inside = get_origin(hint), get_args(hint)
    if hint in _PLAIN or kind is Literal:
        return None
    if _is_a(hint, Enum):
        return attrgetter("_value_")
    if _is_a(hint, Result):
        return methodcaller("to_dict")
    if kind is tuple:
        return _tuple_writer(inside)
    if kind is dict and inside[0] is str:
        write_item = _writer(inside[1])
        if write_item is None:
            return dict
        return lambda values: {key: write_item(item) for key, item in values.items()}
    if kind in (Union, UnionType):
        writes = [_writer(item) for item in inside if item is not NoneType]
        if not any(writes):
            return None
        if len(writes) == 1 and (write := writes[0]):
            return lambda value: None if value is None else write(value)
    raise TypeError(f"A result may not hold {hint}: it could not be read back from JSON.")


def _tuple_writer(inside: tuple[Any, ...]) -> _Convert:
    writes = [_writer(item) for item in inside if item is not ...]
    if not any(writes):
        return list
    if inside[1:] == (...,) and (write := writes[0]):
        # What stands for a tuple of very many results writes them without making them.
        return lambda values: (
            values.to_list() if hasattr(values, "to_list") else [write(value) for value in values]
        )
    return lambda values: [w(v) if w else v for w, v in zip(writes, values, strict=True)]


class _Unfit(Exception):
    """Data that is not what a field holds; its place is completed on the way out."""

    def __init__(self, expected: str, *seen: Any) -> None:
        super().__init__(expected)
        self.expected = expected
        self.seen = shortened(repr(seen[0]), 60) if seen else "nothing"
        self.place = ""

    def within(self, outer: str) -> Self:
        inner = self.place
        self.place = f"{outer}.{inner}" if inner and inner[0] != "[" else outer + inner
        return self


def _read(cls: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise _Unfit(f"the fields of a {cls.__name__}", data)
    values = {}
    try:
        for name, (read, required) in _readers(cls).items():
            if name in data:
                values[name] = read(data[name])
            elif required:
                raise _Unfit("a value")
        if len(values) < len(data):
            for name in data.keys() - values.keys():
                if name != "missing":
                    raise _Unfit("no such field", data[name])
                values |= _read_reasons(data[name], values)
    except _Unfit as unfit:
        raise unfit.within(str(name)) from None
    return cls(**values)


def _read_reasons(data: Any, values: Mapping[str, Any]) -> dict[str, Missing]:
    for name, reason in _TEXTS(data).items():
        if values.get(name, reason) is not None:
            raise _Unfit("reasons of fields that are null", reason).within(name)
    return {name: Missing(reason) for name, reason in data.items()}


@cache
def _readers(cls: type) -> dict[str, tuple[_Convert, bool]]:
    """Of each field: how it is read, and whether it has to be there."""
    required = {
        field.name: field.default is field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(cls)
    }
    return {name: (_reader(hint), required[name]) for name, hint in _hints(cls).items()}


def _reader(hint: Any) -> _Convert:
    kind, inside = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _plain_reader(hint)
    if kind is Literal or _is_a(hint, Enum):
        members = {word: word for word in inside} or {item.value: item for item in hint}
        return _member_reader(members)
    if _is_a(hint, Result):
        return lambda value: _read(hint, value)
    if kind is tuple:
        return _tuple_reader(inside)
    if kind is dict:
        return _dict_reader(_reader(inside[1]))
    read, *others = [_reader(item) for item in inside if item is not NoneType]
    if others:
        return _plain_reader(*inside)
    return lambda value: None if value is None else read(value)


def _plain_reader(*types: type) -> _Convert:
    words = " or ".join(_PLAIN.get(item, "null") for item in types)

    def read(value: Any) -> Any:
        if type(value) in types:
            return value
        if float in types and type(value) is int:
            return float(value)
        raise _Unfit(words, value)

    return read


def _member_reader(members: Mapping[Any, Any]) -> _Convert:
    def read(value: Any) -> Any:
        if isinstance(value, str | int) and value in members:
            return members[value]
        raise _Unfit(f"one of {', '.join(map(str, members))}", value)

    return read


def _tuple_reader(inside: tuple[Any, ...]) -> _Convert:
    reads = [_reader(item) for item in inside if item is not ...]
    size = len(reads) if inside[1:] != (...,) else None

    def read(values: Any) -> Any:
        if not isinstance(values, list | tuple) or (size is not None and len(values) != size):
            raise _Unfit("a list" if size is None else f"a list of {size}", values)
        if size is None and inside[0] in _PLAIN and {inside[0]}.issuperset(map(type, values)):
            return tuple(values)  # a million numbers, none of which needs a look of its own
        result: list[Any] = []
        try:
            for read_item, value in zip(cycle(reads), values, strict=False):
                result.append(read_item(value))
        except _Unfit as unfit:
            raise unfit.within(f"[{len(result)}]") from None
        return tuple(result)

    return read


def _dict_reader(read_item: _Convert) -> _Convert:
    def read(values: Any) -> Any:
        if not isinstance(values, Mapping):
            raise _Unfit("names and their values", values)
        result = {}
        for name, value in values.items():
            try:
                result[name] = read_item(value)
            except _Unfit as unfit:
                raise unfit.within(f"[{name!r}]") from None
        return result

    return read


_TEXTS = _dict_reader(_plain_reader(str))


def _is_a(hint: Any, base: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, base)
