"""`.pt`, `.pth` and `.bin`: torch's zip archives and its older stream, read without unpickling."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import Checksum, Index, Shard, TensorEntry, row_major
from gradwatch.checkpoints.limits import MAX_DEPTH, MAX_PICKLE, MAX_TENSORS
from gradwatch.checkpoints.readers import archives
from gradwatch.checkpoints.readers.claims import checked_name, checked_shape, model_part
from gradwatch.checkpoints.readers.files import OpenFile, opened
from gradwatch.checkpoints.readers.pickles import (
    PickledCall,
    PickledDict,
    PickledName,
    PickledReference,
    PickleMachine,
)
from gradwatch.errors import GradwatchError

_STREAM_MAGIC = 0x1950A86A20F9469CFC6C
STREAM_HEAD = b"\x80\x02\x8a\x0a" + _STREAM_MAGIC.to_bytes(10, "little")
_MAX_STORAGES = 1_000_000
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
_REBUILDS = (
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",  # with the element type beside an untyped storage
)
_PARAMETERS = (
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.nn.parameter.Parameter",
)
_SUBCLASS = "torch._tensor._rebuild_from_type_v2"
_MAKES_TENSORS = frozenset({*_REBUILDS, *_PARAMETERS, _SUBCLASS})
_USUAL_NAMES = _MAKES_TENSORS.union(
    ("collections.OrderedDict", "collections.defaultdict", "torch.Size", "torch.device"),
    (f"torch.storage.{_UNTYPED}", f"torch.{_UNTYPED}"),
    (f"torch.{name}" for name in (*_STORAGES, *Element)),
)
"""What every state dict refers to."""
_Words = tuple[str, ...]
"""The keys that lead to a tensor, one per level of nesting."""


@dataclass(frozen=True, slots=True)
class StorageView:
    """A tensor as a state dict has it: a window on a storage."""

    storage: str
    storage_count: int
    """Elements the storage has, by the pickle's account."""
    element: Element
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    note: str = ""

    def shard(self, storage_begin: int, file: int, start: tuple[int, ...]) -> Shard:
        """Where its elements lie in file number `file`, as the part of a tensor at `start`."""
        begin = storage_begin + self.offset * self.element.size
        return Shard(file, begin, self.shape, self.strides, start)


@dataclass(frozen=True, slots=True)
class SavedObject:
    """What was handed to `torch.save`, as its pickle describes it."""

    value: Any
    names: Iterable[str]
    """Everything the pickle refers to."""
    begin_of: Callable[[StorageView], int]
    """Where in the file the view's storage begins."""
    checksums: tuple[Checksum, ...] = ()
    notes: tuple[str, ...] = ()


class NotMeasured(ValueError):
    """Why one tensor is left out, in a few words."""


# -- the two kinds of files ------------------------------------------------------------------------


def read_zip(path: Path) -> Index:
    """The index of an archive of `torch.save`."""
    with opened(path) as file:
        saved = saved_in_zip(file)
        return _index(file, "torch zip", saved, *_views(saved.value, file.path))


def saved_in_zip(file: OpenFile) -> SavedObject:
    """What the archive's pickle stands for, and where its storages are."""
    path = file.path
    members = archives.members(file)
    roots = [name[: -len("data.pkl")] for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise GradwatchError(
            f"{path} is a zip archive without the one data.pkl that torch.save writes."
        )
    root = roots[0]
    if f"{root}constants.pkl" in members or any(n.startswith(f"{root}code/") for n in members):
        raise GradwatchError(
            f"{path} is a TorchScript program, which is never loaded here. "
            "Save its state_dict() with torch.save or safetensors and examine that."
        )
    for member in members.values():
        if member.method != archives.STORED:
            raise GradwatchError(
                f"{path} has a compressed member {member.name[:80]!r}; torch.save compresses "
                "nothing, so it is not read."
            )
    order = members.get(f"{root}byteorder")
    if order is not None and file.read(order.offset, min(order.length, 16)) != b"little":
        raise GradwatchError(f"{path} was written on a big-endian machine; it is not read.")
    pickle = members[f"{root}data.pkl"]
    if pickle.length > MAX_PICKLE:
        raise GradwatchError(
            f"{path} describes its tensors in {pickle.length} bytes; at most {MAX_PICKLE} are read."
        )
    machine = PickleMachine(file.read(pickle.offset, pickle.length), f"The pickle in {path}")

    def begin_of(view: StorageView) -> int:
        storage = members.get(f"{root}data/{view.storage}")
        if storage is None or storage.length != view.storage_count * view.element.size:
            has = "is missing" if storage is None else f"has {storage.length} bytes"
            raise GradwatchError(
                f"{path}: storage {view.storage[:80]!r} {has}; "
                f"{view.storage_count} elements of {view.element} were expected."
            )
        return file.begin + storage.offset

    value = machine.load()
    if all(member.crc == 0 for member in members.values()):
        notes = ("The file was saved without checksums.",)
        return SavedObject(value, machine.foreign, begin_of, notes=notes)
    checksums = tuple(
        Checksum(0, file.begin + m.offset, m.length, m.crc, m.name) for m in members.values()
    )
    return SavedObject(value, machine.foreign, begin_of, checksums)


def read_stream(path: Path) -> Index:
    """The index of the stream `torch.save` wrote before version 1.6."""
    with opened(path) as file:
        machine = PickleMachine(file.head(MAX_PICKLE), f"The pickle in {path}")
        magic, protocol, system = machine.load(), machine.load(), machine.load()
        if magic != _STREAM_MAGIC or protocol != 1001:
            raise GradwatchError(f"{path} begins like an old torch file but is none.")
        if ("little_endian", True) not in getattr(system, "pairs", []):
            raise GradwatchError(f"{path} was written on a big-endian machine; it is not read.")
        value, keys = machine.load(), machine.load()
        if not isinstance(keys, list) or len(keys) > _MAX_STORAGES:
            raise GradwatchError(f"{path}: the list of storages is not usable.")
        views, left_out = _views(value, file.path)
        begins = _stream_storages(file, machine.position, keys, views.values())

        def begin_of(view: StorageView) -> int:
            if view.storage not in begins:
                raise GradwatchError(f"{path}: storage {view.storage[:80]!r} is missing.")
            return begins[view.storage]

        saved = SavedObject(value, machine.foreign, begin_of)
        return _index(file, "torch stream", saved, views, left_out)


def _stream_storages(
    file: OpenFile, position: int, keys: list[Any], views: Iterable[StorageView]
) -> dict[str, int]:
    """Where each storage begins: eight bytes of length in elements, then the elements."""
    path = file.path
    view_on = {view.storage: view for view in views}
    begins: dict[str, int] = {}
    for key in keys:
        view = view_on.get(key) if isinstance(key, str) else None
        if view is None:
            raise GradwatchError(
                f"{path}: it stores something whose element type is not known; resave the file "
                "with a newer torch, or as safetensors."
            )
        count = int.from_bytes(file.read(position, 8), "little")
        if count != view.storage_count or key in begins:
            raise GradwatchError(f"{path}: storage {key[:80]!r} is described in two ways.")
        begins[key] = position + 8
        position += 8 + count * view.element.size
    if position != file.size:
        raise GradwatchError(f"{path} has {file.size} bytes, but its storages end at {position}.")
    return begins


def _index(
    file: OpenFile,
    kind: str,
    saved: SavedObject,
    views: dict[_Words, StorageView],
    left_out: dict[_Words, str],
) -> Index:
    kept, beside = model_part(views)
    names_of: dict[tuple[StorageView, int], list[str]] = {}  # tied weights: two names of one view
    for name, view in kept.items():
        names_of.setdefault((view, saved.begin_of(view)), []).append(name)
    tensors = []
    for (view, begin), (name, *aliases) in names_of.items():
        shard = view.shard(begin, 0, (0,) * len(view.shape))
        tensors.append(
            TensorEntry(name, view.shape, view.element, (shard,), tuple(aliases), view.note)
        )
    return Index(
        file.path,
        kind,
        (file.identity,),
        tuple(tensors),
        saved.checksums,
        {**{".".join(words): reason for words, reason in left_out.items()}, **beside},
        tuple(name for name in saved.names if name not in _USUAL_NAMES),
        saved.notes,
    )


# -- from what a pickle stands for to tensors ------------------------------------------------------


def _views(value: Any, path: str) -> tuple[dict[_Words, StorageView], dict[_Words, str]]:
    """The tensors by the words that lead to them, and why others are not measured."""
    views: dict[_Words, StorageView] = {}
    left_out: dict[_Words, str] = {}
    for words, call in tensor_calls(value, path):
        words = words or ("tensor",)
        name = ".".join(words)
        if words in views or words in left_out:
            raise GradwatchError(f"{path}: the name {name[:80]!r} stands in it twice.")
        try:
            views[words] = view_of(call, name, path)
        except NotMeasured as reason:
            left_out[words] = str(reason)
    return views, left_out


def tensor_calls(value: Any, path: str) -> Iterator[tuple[_Words, PickledCall]]:
    """Every tensor in nested dictionaries and lists with the words that lead to it, in order."""
    seen: set[int] = set()  # containers that hold themselves, or are held 2^60 times, are read once
    pending: list[tuple[_Words, Any]] = [((), value)]
    count = 0
    while pending:
        words, value = pending.pop()
        if len(words) > MAX_DEPTH:
            raise GradwatchError(
                f"{path} nests its contents more than {MAX_DEPTH} deep; it is not read."
            )
        if is_tensor(value):
            count += 1
            if count > MAX_TENSORS:
                raise GradwatchError(f"{path} holds more than {MAX_TENSORS} tensors.")
            yield words, value
            continue
        if isinstance(value, PickledCall | PickledDict):  # a call: of a dictionary's subclass
            value = value.pairs
            pairs = value
        else:
            pairs = list(enumerate(value)) if isinstance(value, list | tuple) else []
        if id(value) not in seen:
            seen.add(id(value))
            pending.extend(
                ((*words, str(key)[:8192]), item)
                for key, item in reversed(pairs)
                if isinstance(item, PickledCall | PickledDict | list | tuple)
                and (isinstance(key, str) or (type(key) is int and abs(key) < 1 << 63))
            )


def is_tensor(value: Any) -> bool:
    """Whether this is a call that would make a tensor."""
    if not isinstance(value, PickledCall) or not isinstance(value.function, PickledName):
        return False
    function = value.function
    return str(function) in _MAKES_TENSORS or (
        function.module.startswith("torch._utils") and function.name.startswith("_rebuild_")
    )


def view_of(call: PickledCall, name: str, path: str) -> StorageView:
    """The window a tensor is; raises NotMeasured for kinds we do not read."""
    checked_name(name, path)
    for _ in range(8):  # parameters and subclasses are wrapped around the tensor itself
        function, arguments = str(call.function), call.arguments
        if function in _PARAMETERS and arguments and isinstance(arguments[0], PickledCall):
            call = arguments[0]
        elif function == _SUBCLASS and len(arguments) >= 3 and isinstance(arguments[2], tuple):
            call = PickledCall(arguments[0], arguments[2])
            if not isinstance(call.function, PickledName):
                break
        else:
            break
    if function not in _REBUILDS:
        kind = function.rpartition(".")[2].removeprefix("_rebuild_")
        raise NotMeasured(f"a tensor of the kind {kind[:40]!r} is not measured")
    offset, claimed_shape, strides = _window(arguments, name, path)
    key, element, count = _storage(arguments, name, path)
    shape, strides = _without_repetition(claimed_shape, strides)
    if _overlap(shape, strides):
        raise NotMeasured("its elements lie over one another (a sliding view)")
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if all(shape) and not 0 <= offset <= offset + reach <= count:
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} reaches outside its storage of {count} elements; "
            "the file is damaged or hostile."
        )
    note = "" if shape == claimed_shape else f"stored once, shown as {list(claimed_shape)}"
    return StorageView(key, count, element, offset, shape, strides, note)


def _window(arguments: Any, name: str, path: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset, shape and strides."""
    if len(arguments) < 4 or not isinstance(arguments[0], PickledReference):
        raise GradwatchError(f"{path}: tensor {name[:80]!r} is not described completely.")
    offset, strides = arguments[1], size_of(arguments[3])
    shape = checked_shape(size_of(arguments[2]), name, path)
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
    return offset, shape, tuple(strides)


def _storage(arguments: Any, name: str, path: str) -> tuple[str, Element, int]:
    """Name, element type and number of elements of the storage a tensor is a window on."""
    key = arguments[0].key
    if not (
        isinstance(key, tuple)
        and len(key) >= 5
        and key[0] == "storage"
        and isinstance(key[1], PickledName)
        and isinstance(key[2], str)
        and type(key[4]) is int
        and 0 <= key[4] < 1 << 60
    ):
        raise GradwatchError(f"{path}: the storage of tensor {name[:80]!r} is not usable.")
    if len(key) > 5 and key[5] is not None:
        raise NotMeasured("it is a view in the style of torch 0.x")
    kind, storage, count = key[1].name, key[2], key[4]
    if kind == _UNTYPED:  # counted in bytes
        dtype = arguments[6] if len(arguments) > 6 else None
        element = element_of(dtype)
        if element is None:
            raise NotMeasured(f"elements of type {str(dtype)[:40]!r} are not measured")
        return storage, element, count // element.size
    if kind not in _STORAGES:
        raise NotMeasured(f"a storage of the kind {kind[:40]!r} is not measured")
    return storage, _STORAGES[kind], count


def element_of(dtype: Any) -> Element | None:
    """The element type that `torch.NAME` in a pickle stands for, if it can be measured."""
    try:
        return Element(dtype.name if isinstance(dtype, PickledName) else "")
    except ValueError:
        return None


def size_of(value: Any) -> Any:
    """A shape given as a tuple, or as a call of torch.Size."""
    if isinstance(value, PickledCall) and str(value.function) == "torch.Size" and value.arguments:
        return value.arguments[0]
    return value


def _without_repetition(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A dimension of stride 0 shows one element many times; here it counts once."""
    once = tuple(1 if n > 1 and s == 0 else n for n, s in zip(shape, strides, strict=True))
    # The stride of a dimension of size one is never used, and torch writes anything there.
    usual = row_major(once)
    return once, tuple(u if n <= 1 else s for n, s, u in zip(once, strides, usual, strict=True))


def _overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two places of the view may be one element (every dense view passes)."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
