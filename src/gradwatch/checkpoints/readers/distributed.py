"""torch.distributed.checkpoint folders: a pickled `.metadata` and files full of saved shards."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import Checksum, Index, Shard, TensorEntry
from gradwatch.checkpoints.limits import MAX_FILES, MAX_PICKLE, MAX_TENSORS
from gradwatch.checkpoints.readers.claims import (
    checked_name,
    checked_shape,
    flat_model_part,
    in_order,
)
from gradwatch.checkpoints.readers.files import OpenFile, inside, opened, read_all
from gradwatch.checkpoints.readers.pickles import PickledCall, PickledDict, PickleMachine, unknown
from gradwatch.checkpoints.readers.torch_files import (
    NotMeasured,
    SavedObject,
    element_of,
    is_tensor,
    saved_in_zip,
    size_of,
    view_of,
)
from gradwatch.errors import GradwatchError

METADATA = ".metadata"
_MAX_OPEN = min(MAX_FILES, 900)
_Numbers = tuple[int, ...]
_Place = tuple[str, int, int]
"""File, offset and length of a saved shard."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """A tensor as the metadata describe it."""

    key: str
    element: Element
    shape: _Numbers
    boxes: list[tuple[_Numbers, _Numbers]]
    """Where each shard begins in the tensor, and its shape."""


def read(folder: Path) -> Index:
    """The index of the folder; the bytes of every shard are found inside its file."""
    path = inside(folder, METADATA)
    machine = PickleMachine(read_all(path, MAX_PICKLE), str(path))
    metadata = _fields(machine.load())
    declared = dict(_declarations(metadata.get("state_dict_metadata"), str(path)))
    of_model, left_out = flat_model_part(declared)
    places = dict(_places(metadata.get("storage_data"), str(path)))
    with ExitStack() as stack:
        files = _DataFiles(folder, places, stack)
        tensors = tuple(files.tensor(name, of_model[name]) for name in in_order(of_model))
        files.look_at_the_rest()
    return Index(
        str(folder),
        "torch.distributed.checkpoint",
        tuple(file.identity for _, file in files.open_files.values()),
        tensors,
        tuple(files.checksums),
        left_out,
        unknown([*machine.names, *files.names]),
    )


class _DataFiles:
    """The data files of the folder, each opened once, and the checksums of the shards read."""

    def __init__(
        self, folder: Path, places: dict[tuple[str, _Numbers | None], _Place], stack: ExitStack
    ) -> None:
        self.folder, self.places, self.stack = folder, places, stack
        self.open_files: dict[str, tuple[int, OpenFile]] = {}
        self.checksums: list[Checksum] = []
        self.names: dict[str, None] = {}  # all that the pickles inside refer to
        self._read: set[_Place] = set()

    def tensor(self, name: str, declared: _Declared) -> TensorEntry:
        shards = tuple(self._shard(declared, *box) for box in declared.boxes)
        name = checked_name(name, str(self.folder))
        return TensorEntry(name, declared.shape, declared.element, shards)

    def _shard(self, declared: _Declared, start: _Numbers, shape: _Numbers) -> Shard:
        key = declared.key
        if (key, start) not in self.places:
            raise GradwatchError(
                f"{self.folder}: the part of {key[:80]!r} at {list(start)} is in no file."
            )
        place = self.places[key, start]
        name = place[0]
        number, file = self._numbered(name)
        saved = self._saved(place)
        if not is_tensor(saved.value):
            raise GradwatchError(f"{self.folder}/{name}: the part of {key[:80]!r} is no tensor.")
        try:
            view = view_of(saved.value, key, file.path)
        except NotMeasured as reason:
            raise GradwatchError(f"{self.folder}: {key[:80]!r}: {reason}.") from None
        if view.shape != shape or view.element is not declared.element:
            raise GradwatchError(
                f"{self.folder}/{name}: the part of {key[:80]!r} has shape {list(view.shape)} and "
                f"type {view.element}; {list(shape)} and {declared.element} were announced."
            )
        self.checksums += [replace(checksum, file=number) for checksum in saved.checksums]
        return view.shard(saved.begin_of(view), number, start)

    def look_at_the_rest(self) -> None:
        """What is beside the model, an optimizer or an epoch, is pickled too: note its names."""
        for place in self.places.values():
            if place not in self._read:
                self._saved(place)

    def _saved(self, place: _Place) -> SavedObject:
        name, offset, length = place
        self._read.add(place)
        saved = saved_in_zip(self._numbered(name)[1].part(offset, length))
        self.names |= dict.fromkeys(saved.names)
        return saved

    def _numbered(self, name: str) -> tuple[int, OpenFile]:
        if name not in self.open_files:
            if len(self.open_files) >= _MAX_OPEN:
                raise GradwatchError(f"{self.folder} consists of more than 900 files.")
            file = self.stack.enter_context(opened(inside(self.folder, name)))
            self.open_files[name] = len(self.open_files), file
        return self.open_files[name]


def _declarations(pairs: Any, path: str) -> Iterator[tuple[str, _Declared]]:
    """Every tensor of the metadata; what was pickled whole (numbers, lists) is no tensor."""
    for key, value in _pairs(pairs, path):
        fields = _fields(value)
        if not isinstance(key, str) or "chunks" not in fields:
            continue
        shape = checked_shape(size_of(fields.get("size")), key, path)
        dtype = _dtype(fields.get("properties"))
        element = element_of(dtype)
        if element is None:
            raise GradwatchError(
                f"{path}: {key[:80]!r} has elements of type {str(dtype)[:40]!r}, "
                "which are not measured."
            )
        boxes = []
        for chunk in fields["chunks"] if isinstance(fields["chunks"], list) else []:
            corner = checked_shape(size_of(_fields(chunk).get("offsets")), key, path)
            sizes = checked_shape(size_of(_fields(chunk).get("sizes")), key, path)
            if len(corner) != len(shape) or any(
                begin + size > end for begin, size, end in zip(corner, sizes, shape, strict=True)
            ):
                raise GradwatchError(f"{path}: a part of {key[:80]!r} lies outside of it.")
            boxes.append((corner, sizes))
        yield key, _Declared(key, element, shape, boxes)


def _dtype(properties: Any) -> Any:
    state = properties.state if isinstance(properties, PickledCall) else None
    return state[0] if isinstance(state, tuple) and state else _fields(properties).get("dtype")


def _places(pairs: Any, path: str) -> Iterator[tuple[tuple[str, _Numbers | None], _Place]]:
    """Name and first corner of a shard (None: what is no tensor) → where its bytes are."""
    for key, value in _pairs(pairs, path):
        shard, info = _fields(key), _fields(value)
        name, corner = shard.get("fqn"), shard.get("offset")
        file, offset, length = (info.get(key) for key in ("relative_path", "offset", "length"))
        if info.get("transform_descriptors"):
            raise GradwatchError(f"{path}: its files are compressed; they are not read.")
        if (
            isinstance(name, str)
            and isinstance(file, str)
            and type(offset) is int
            and type(length) is int
        ):
            begin = None if corner is None else checked_shape(size_of(corner), name, path)
            yield (name, begin), (file, offset, length)


def _pairs(value: Any, path: str) -> list[tuple[Any, Any]]:
    if not isinstance(value, PickledDict) or len(value.pairs) > 4 * MAX_TENSORS:
        raise GradwatchError(f"{path} is not the metadata of a distributed checkpoint.")
    return value.pairs


def _fields(value: Any) -> dict[str, Any]:
    """The attributes an object would have; also of frozen dataclasses with slots."""
    state = value.state if isinstance(value, PickledCall) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1] or state[0]
    if not isinstance(state, PickledDict):
        return {}
    return {key: item for key, item in state.pairs if isinstance(key, str)}
