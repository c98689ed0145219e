"""From what a pickle stands for to the tensors of a state dict: names, shapes and storages."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import row_major
from gradwatch.checkpoints.limits import MAX_DEPTH, MAX_TENSORS
from gradwatch.checkpoints.readers.sizes import checked_name, checked_shape, overlaps
from gradwatch.checkpoints.readers.symbols import Call, Global, Pairs, Persistent
from gradwatch.errors import GradwatchError

_STORAGES = {
    "DoubleStorage": Element.FLOAT64,
    "FloatStorage": Element.FLOAT32,
    "BFloat16Storage": Element.BFLOAT16,
    "HalfStorage": Element.FLOAT16,
    "LongStorage": Element.INT64,
    "IntStorage": Element.INT32,
    "ShortStorage": Element.INT16,
    "CharStorage": Element.INT8,
    "ByteStorage": Element.UINT8,
    "BoolStorage": Element.BOOL,
}
_UNTYPED = "UntypedStorage"
_REBUILD = "torch._utils._rebuild_tensor_v2"
_REBUILD_OLD = "torch._utils._rebuild_tensor"
_REBUILD_TYPED = "torch._utils._rebuild_tensor_v3"
_WRAPPERS = frozenset(
    {
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch.nn.parameter.Parameter",
    }
)
_SUBCLASS = "torch._tensor._rebuild_from_type_v2"
KNOWN = frozenset(
    {
        _REBUILD,
        _REBUILD_OLD,
        _REBUILD_TYPED,
        _SUBCLASS,
        *_WRAPPERS,
        "collections.OrderedDict",
        "collections.defaultdict",
        "torch.Size",
        "torch.device",
        f"torch.storage.{_UNTYPED}",
        f"torch.{_UNTYPED}",
        *(f"torch.{name}" for name in _STORAGES),
        *(f"torch.{element}" for element in Element),
    }
)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor as a state dict has it: a window on a storage."""

    storage: str
    storage_count: int
    """Elements the storage is said to have."""
    element: Element
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    note: str = ""


class NotMeasured(ValueError):
    """Why one tensor is left out, in a few words."""


def named_values(found: Any, path: str) -> Iterator[tuple[tuple[str, ...], Call]]:
    """Every tensor in nested dictionaries and lists with the words that lead to it, in order."""
    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], Any]] = [((), found)]
    count = 0
    while pending:
        words, value = pending.pop()
        if len(words) > MAX_DEPTH:
            raise GradwatchError(
                f"{path} nests its contents more than {MAX_DEPTH} deep; it is not read."
            )
        if isinstance(value, Call) and not is_tensor(value):
            value = _contents(value)
        if isinstance(value, Call):
            count += 1
            if count > MAX_TENSORS:
                raise GradwatchError(f"{path} holds more than {MAX_TENSORS} tensors.")
            yield words, value
        elif isinstance(value, Pairs | list | tuple):
            mark = id(value.pairs if isinstance(value, Pairs) else value)
            if mark in seen:
                continue
            seen.add(mark)
            pairs = value.pairs if isinstance(value, Pairs) else list(enumerate(value))
            pending.extend(
                ((*words, str(key)[:8192]), child)
                for key, child in reversed(pairs)
                if isinstance(child, Call | Pairs | list | tuple)
                and (isinstance(key, str) or (type(key) is int and abs(key) < 1 << 63))
            )


def _contents(call: Call) -> Any:
    """What is inside an object that is no tensor: items of a dictionary's subclass, or nothing."""
    return Pairs(call.pairs) if call.pairs else None


def is_tensor(call: Call) -> bool:
    """Whether the call would make a tensor."""
    return isinstance(call.function, Global) and (
        str(call.function) in (_REBUILD, _REBUILD_OLD, _REBUILD_TYPED, _SUBCLASS, *_WRAPPERS)
        or (
            call.function.module.startswith("torch._utils")
            and call.function.name.startswith("_rebuild_")
        )
    )


def view_of(call: Call, name: str, path: str) -> View:
    """The window a tensor is; raises NotMeasured for kinds we do not read."""
    checked_name(name, path)
    for _ in range(8):
        word, arguments = str(call.function), call.arguments
        if word in _WRAPPERS and arguments and isinstance(arguments[0], Call):
            call = arguments[0]
        elif word == _SUBCLASS and len(arguments) >= 3 and isinstance(arguments[2], tuple):
            call = Call(arguments[0], arguments[2])
            if not isinstance(call.function, Global):
                break
        else:
            break
    if word not in (_REBUILD, _REBUILD_OLD, _REBUILD_TYPED):
        kind = word.rpartition(".")[2].removeprefix("_rebuild_")
        raise NotMeasured(f"a tensor of the kind {kind[:40]!r} is not measured")
    storage, offset, shape, strides = _parts(arguments, name, path)
    key, element, count = _storage(storage, name, path)
    if element is None:
        element = _typed(arguments)
        count //= element.size
    shape, strides, note = _plain(shape, strides)
    if overlaps(shape, strides):
        raise NotMeasured("its elements lie over one another (a sliding view)")
    view = View(key, count, element, offset, shape, strides, note)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if all(shape) and not 0 <= offset <= offset + reach <= count:
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} reaches outside its storage of {count} elements; "
            "the file is damaged or hostile."
        )
    return view


def _parts(
    arguments: Any, name: str, path: str
) -> tuple[Persistent, int, tuple[int, ...], tuple[int, ...]]:
    if len(arguments) < 4 or not isinstance(arguments[0], Persistent):
        raise GradwatchError(f"{path}: tensor {name[:80]!r} is not described completely.")
    offset, shape, strides = arguments[1], _sized(arguments[2]), _sized(arguments[3])
    shape = checked_shape(shape, name, path)
    if (
        type(offset) is not int
        or not 0 <= offset < 1 << 60
        or not isinstance(strides, tuple | list)
        or len(strides) != len(shape)
        or not all(type(s) is int and 0 <= s < 1 << 60 for s in strides)
    ):
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} has an offset or strides that no tensor has."
        )
    return arguments[0], offset, shape, tuple(strides)


def _sized(value: Any) -> Any:
    """A shape given as a tuple, or as a call of torch.Size."""
    if isinstance(value, Call) and str(value.function) == "torch.Size" and value.arguments:
        return value.arguments[0]
    return value


def _storage(storage: Persistent, name: str, path: str) -> tuple[str, Element | None, int]:
    key = storage.key
    if not (
        isinstance(key, tuple)
        and len(key) >= 5
        and key[0] == "storage"
        and isinstance(key[1], Global)
        and isinstance(key[2], str)
        and type(key[4]) is int
        and 0 <= key[4] < 1 << 60
    ):
        raise GradwatchError(f"{path}: the storage of tensor {name[:80]!r} is not usable.")
    if len(key) > 5 and key[5] is not None:
        raise NotMeasured("it is a view in the style of torch 0.x")
    if key[1].name == _UNTYPED:
        return key[2], None, key[4]
    element = _STORAGES.get(key[1].name)
    if element is None:
        raise NotMeasured(f"a storage of the kind {key[1].name[:40]!r} is not measured")
    return key[2], element, key[4]


def _typed(arguments: Any) -> Element:
    """The element type of `_rebuild_tensor_v3`, which gives it beside an untyped storage."""
    symbol = arguments[6] if len(arguments) > 6 else None
    try:
        return Element(symbol.name if isinstance(symbol, Global) else "")
    except ValueError:
        raise NotMeasured(f"elements of type {str(symbol)[:40]!r} are not measured") from None


def _plain(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Without repetition: a dimension of stride 0 shows one element many times, and counts once."""
    repeated = [n > 1 and s == 0 for n, s in zip(shape, strides, strict=True)]
    kept = tuple(1 if r else n for n, r in zip(shape, repeated, strict=True))
    usual = row_major(kept)
    # The stride of a dimension of size one is never used, and torch writes anything there.
    strides = tuple(u if n <= 1 else s for n, s, u in zip(kept, strides, usual, strict=True))
    return kept, strides, f"stored once, shown as {list(shape)}" if any(repeated) else ""
