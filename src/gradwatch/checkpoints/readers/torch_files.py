"""`.pt`, `.pth` and `.bin`: torch's zip archives and its older stream, read without unpickling."""

from collections.abc import Callable, Iterable, Iterator
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
    unknown,
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
_WITH_STATE = ("torch._utils._rebuild_parameter_with_state", _SUBCLASS)
_CONTAINERS = (PickledCall, PickledDict, list, tuple)
_CONTAINER = PickledName("builtins", "dict")
_MAX_CONTAINERS = 500_000
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
    """In elements; of an expanded tensor some are 0, of a sliding view some overlap."""

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
    # torch goes by the first member, and finds names in any mixture of cases
    root = next(iter(members), "").partition("/")[0] + "/"
    if f"{root}constants.pkl" in members or any(n.startswith(f"{root}code/") for n in members):
        raise GradwatchError(
            f"{path} is a TorchScript program, which is never loaded here. "
            "Save its state_dict() with torch.save or safetensors and examine that."
        )
    for name in members:
        if not name.startswith(root) or name[len(root) :] != name[len(root) :].lower():
            raise GradwatchError(
                f"{path} has a member {name[:80]!r}; torch.save writes none of that kind, and "
                "torch would find it under other names. It is not read."
            )
    if f"{root}data.pkl" not in members:
        raise GradwatchError(
            f"{path} is a zip archive without the one data.pkl that torch.save writes."
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
        return SavedObject(value, machine.names, begin_of, notes=notes)
    checksums = tuple(
        Checksum(0, file.begin + m.offset, m.length, m.crc, m.name) for m in members.values()
    )
    return SavedObject(value, machine.names, begin_of, checksums)


def read_stream(path: Path) -> Index:
    """The index of the stream `torch.save` wrote before version 1.6."""
    with opened(path) as file:
        if _is_tar(file.head(512)):
            raise GradwatchError(
                f"{path} is an old torch file and a tar archive at once; torch would read the "
                "archive. It is not read."
            )
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

        saved = SavedObject(value, machine.names, begin_of)
        return _index(file, "torch stream", saved, views, left_out)


def _is_tar(head: bytes) -> bool:
    """Whether the first bytes are a tar archive's header: they have the checksum it names."""
    if len(head) < 512:
        return False
    field = head[148:156]
    try:
        if field[0] in (0x80, 0xFF):
            claimed = int.from_bytes(field[1:], "big") - (256**7 if field[0] == 0xFF else 0)
        else:
            claimed = int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return False
    rest = head[:148] + b" " * 8 + head[156:512]
    signed = sum(byte - 256 * (byte > 127) for byte in rest)
    return claimed in (sum(rest), signed)


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
        tensors.append(TensorEntry(name, view.shape, view.element, (shard,), tuple(aliases)))
    return Index(
        file.path,
        kind,
        (file.identity,),
        tuple(tensors),
        saved.checksums,
        {**{".".join(words): reason for words, reason in left_out.items()}, **beside},
        unknown(saved.names),
        saved.notes,
    )


# -- from what a pickle stands for to tensors ------------------------------------------------------


def _views(value: Any, path: str) -> tuple[dict[_Words, StorageView], dict[_Words, str]]:
    """The tensors by the words that lead to them, and why others are not measured."""
    views: dict[_Words, StorageView] = {}
    left_out: dict[_Words, str] = {}
    names: set[str] = set()
    for words, call in tensor_calls(value, path):
        words = words or ("tensor",)
        name = ".".join(words)
        if name in names:
            raise GradwatchError(f"{path}: the name {name[:80]!r} stands in it twice.")
        names.add(name)
        try:
            views[words] = view_of(call, name, path)
        except NotMeasured as reason:
            left_out[words] = str(reason)
    return views, left_out


def tensor_calls(value: Any, path: str) -> Iterator[tuple[_Words, PickledCall]]:
    """Every tensor in nested dictionaries and lists with the words that lead to it, in order.

    Also everything else that has tensors in it (an object, a set), which `view_of` refuses.
    """
    pending: list[tuple[_Words, Any]] = [((), value)]
    looked_at = count = 0
    while pending:
        words, value = pending.pop()
        looked_at += 1
        if len(words) > MAX_DEPTH or looked_at > _MAX_CONTAINERS:
            raise GradwatchError(
                f"{path} nests its contents more than {MAX_DEPTH} deep, or has more than "
                f"{_MAX_CONTAINERS} lists and dictionaries in it; it is not read."
            )
        entries, rest = _contents(value, path)
        if is_tensor(value) or (rest and _with_tensors(rest)):
            count += 1
            if count > MAX_TENSORS:
                raise GradwatchError(f"{path} holds more than {MAX_TENSORS} tensors.")
            yield words, value if isinstance(value, PickledCall) else PickledCall(_CONTAINER, ())
        pending.extend(((*words, str(key)[:8192]), item) for key, item in reversed(entries))


def _contents(value: Any, path: str) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """What a container has by name or number, and what else is in it, which has no name."""
    if is_tensor(value):
        return [], []
    if isinstance(value, list | tuple):
        return [(n, item) for n, item in enumerate(value) if isinstance(item, _CONTAINERS)], []
    if not isinstance(value, PickledCall | PickledDict):
        return [], []
    keys = [key for key, _ in value.pairs]
    if any(isinstance(key, PickledCall) for key in keys):  # a complex 1 is the key 1, for one
        entries, rest = [], [item for _, item in value.pairs]
    else:
        simple = [key for key in keys if isinstance(key, str | int | float)]
        if len(set(simple)) != len(simple):
            raise GradwatchError(f"{path}: a key stands twice in one dictionary of it.")
        held = [(key, item) for key, item in value.pairs if isinstance(item, _CONTAINERS)]
        entries = [(key, item) for key, item in held if _is_name(key)]
        rest = [item for key, item in held if not _is_name(key)]
    if isinstance(value, PickledCall):
        rest += [value.arguments, value.items, value.state]
    return entries, rest


def _is_name(key: Any) -> bool:
    return isinstance(key, str) or (type(key) is int and abs(key) < 1 << 63)


def _with_tensors(values: list[Any]) -> bool:
    """Whether there is a tensor anywhere in these values, whatever way leads to it."""
    pending, seen = list(values), set[int]()
    while pending:
        value = pending.pop()
        if is_tensor(value):
            return True
        if isinstance(value, _CONTAINERS) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, list | tuple):
                pending.extend(value)
                continue
            pending.extend(item for pair in value.pairs for item in pair)
            if isinstance(value, PickledCall):
                pending += [value.arguments, value.items, value.state]
    return False


def is_tensor(value: Any) -> bool:
    """Whether this is a call that would make a tensor."""
    if not isinstance(value, PickledCall) or not isinstance(value.function, PickledName):
        return False
    function = value.function
    if function.module.startswith("torch._utils"):
        return function.name.startswith("_rebuild_")
    in_torch = function.module.partition(".")[0] == "torch"
    return str(function) in _MAKES_TENSORS or (in_torch and function.name.endswith("Tensor"))


def view_of(call: PickledCall, name: str, path: str) -> StorageView:
    """The window a tensor is; raises NotMeasured for kinds we do not read."""
    checked_name(name, path)
    for _ in range(8):  # parameters and subclasses are wrapped around the tensor itself
        function, arguments = str(call.function), call.arguments
        if call.state is not None or call.items or call.pairs:
            raise NotMeasured("it is changed after it was made")
        if function in _WITH_STATE and len(arguments) > 3:
            _must_leave_numbers(arguments[3], name, path)
        if function in _PARAMETERS and arguments and isinstance(arguments[0], PickledCall):
            call = arguments[0]
        elif function == _SUBCLASS and len(arguments) >= 3 and isinstance(arguments[2], tuple):
            call = PickledCall(arguments[0], arguments[2])
            if not isinstance(call.function, PickledName):
                break
        else:
            break
    if not is_tensor(call):
        raise NotMeasured(f"tensors inside a pickled {function[:60]!r} are not examined")
    if function not in _REBUILDS:
        kind = function.rpartition(".")[2].removeprefix("_rebuild_")
        raise NotMeasured(f"a tensor of the kind {kind[:40]!r} is not measured")
    flags = arguments[7 if function.endswith("_v3") else 6 :][:1]
    if flags not in ((), (None,)):
        raise NotMeasured("it is kept conjugated or negated")
    offset, shape, strides = _window(arguments, name, path)
    key, element, count = _storage(arguments, name, path)
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if all(shape) and not 0 <= offset <= offset + reach <= count:
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} reaches outside its storage of {count} elements; "
            "the file is damaged or hostile."
        )
    return StorageView(key, count, element, offset, shape, strides)


def _must_leave_numbers(state: Any, name: str, path: str) -> None:
    """Attributes that a tensor is given; three of them are its numbers, or a storage's."""
    for part in state if isinstance(state, tuple) else (state,):
        keys = {key for key, _ in part.pairs} if isinstance(part, PickledDict) else set()
        if not isinstance(part, PickledDict | None) or keys & {"data", "real", "imag"}:
            raise GradwatchError(
                f"{path}: tensor {name[:80]!r} has attributes that change its numbers; "
                "the file is hostile or was made by something unusual."
            )


def _window(arguments: Any, name: str, path: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset, shape and strides."""
    if len(arguments) < 4 or not isinstance(arguments[0], PickledReference):
        raise GradwatchError(f"{path}: tensor {name[:80]!r} is not described completely.")
    offset, size, strides = arguments[1], size_of(arguments[2]), size_of(arguments[3])
    shape = checked_shape(size, name, path)
    if (
        not isinstance(size, tuple)
        or type(offset) is not int
        or not 0 <= offset < 1 << 60
        or not isinstance(strides, tuple)  # a list could be changed after the tensor is made
        or len(strides) != len(shape)
        or not all(type(s) is int and 0 <= s < 1 << 60 for s in strides)
    ):
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} has an offset or strides that no tensor has."
        )
    # The stride of a dimension of size one is never used, and torch writes anything there.
    usual = row_major(shape)
    used = tuple(u if n <= 1 else s for n, s, u in zip(shape, strides, usual, strict=True))
    return offset, shape, used


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
    if key[3] == "meta":  # torch leaves the bytes alone, if there are any
        raise NotMeasured("it was saved from the device 'meta' and has no numbers")
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
