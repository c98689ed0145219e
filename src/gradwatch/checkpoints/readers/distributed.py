"""torch.distributed.checkpoint folders: a pickled `.metadata` and files full of saved pieces."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import Checksum, FileId, Index, Piece, Tensor
from gradwatch.checkpoints.limits import MAX_FILES, MAX_PICKLE, MAX_TENSORS
from gradwatch.checkpoints.readers.files import OpenFile, inside, opened
from gradwatch.checkpoints.readers.opcodes import Machine
from gradwatch.checkpoints.readers.parts import flat_model_part, in_order
from gradwatch.checkpoints.readers.sizes import checked_name, checked_shape
from gradwatch.checkpoints.readers.symbols import Call, Global, Pairs
from gradwatch.checkpoints.readers.torch_files import piece_of, zip_contents
from gradwatch.checkpoints.readers.torch_values import NotMeasured, is_tensor, view_of
from gradwatch.errors import GradwatchError

METADATA = ".metadata"
_Key = tuple[str, tuple[int, ...]]


def read(folder: Path) -> Index:
    """The index of the folder; the bytes of every piece are found inside its file."""
    path = inside(folder, METADATA)
    with opened(path) as file:
        if file.size > MAX_PICKLE:
            raise GradwatchError(f"{path} has {file.size} bytes; at most {MAX_PICKLE} are read.")
        state = _fields(Machine(file.read(0, file.size), str(path)).load())
    tensors = dict(_declared(state.get("state_dict_metadata"), str(path)))
    kept, left_out = flat_model_part(tensors)
    places = dict(_places(state.get("storage_data"), str(path)))
    original = {id(value): name for name, value in tensors.items()}
    with ExitStack() as stack:
        files = _Files(folder, stack)
        found = tuple(
            _tensor(name, original[id(kept[name])], kept[name], places, files)
            for name in in_order(kept)
        )
        return Index(
            str(folder),
            "torch.distributed.checkpoint",
            tuple(files.identities),
            found,
            tuple(files.checksums),
            left_out,
        )


class _Files:
    """The data files of the folder, opened once each."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.numbers: dict[str, int] = {}
        self.open: list[OpenFile] = []
        self.checksums: list[Checksum] = []

    @property
    def identities(self) -> list[FileId]:
        return [file.identity for file in self.open]

    def number(self, name: str) -> int:
        if name not in self.numbers:
            if len(self.numbers) >= min(MAX_FILES, 900):
                raise GradwatchError(f"{self.folder} consists of more than 900 files.")
            self.numbers[name] = len(self.open)
            self.open.append(self.stack.enter_context(opened(inside(self.folder, name))))
        return self.numbers[name]


class _Declared:
    """A tensor as the metadata describe it."""

    def __init__(
        self,
        element: Element,
        shape: tuple[int, ...],
        chunks: list[tuple[tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        self.element, self.shape, self.chunks = element, shape, chunks


def _tensor(
    name: str,
    key: str,
    declared: _Declared,
    places: dict[_Key, tuple[str, int, int]],
    files: _Files,
) -> Tensor:
    pieces = tuple(
        _piece(key, declared, start, shape, places, files) for start, shape in declared.chunks
    )
    return Tensor(checked_name(name, str(files.folder)), declared.shape, declared.element, pieces)


def _piece(
    key: str,
    declared: _Declared,
    start: tuple[int, ...],
    shape: tuple[int, ...],
    places: dict[_Key, tuple[str, int, int]],
    files: _Files,
) -> Piece:
    if (key, start) not in places:
        raise GradwatchError(
            f"{files.folder}: the part of {key[:80]!r} at {list(start)} is in no file."
        )
    name, offset, length = places[key, start]
    number = files.number(name)
    part = files.open[number].part(offset, length)
    found, _, place, checksums, _ = zip_contents(part)
    if not isinstance(found, Call) or not is_tensor(found):
        raise GradwatchError(f"{files.folder}/{name}: the part of {key[:80]!r} is no tensor.")
    try:
        view = view_of(found, key, part.identity.path)
    except NotMeasured as reason:
        raise GradwatchError(f"{files.folder}: {key[:80]!r}: {reason}.") from None
    if view.shape != shape or view.element is not declared.element:
        raise GradwatchError(
            f"{files.folder}/{name}: the part of {key[:80]!r} has shape {list(view.shape)} and "
            f"type {view.element}; {list(shape)} and {declared.element} were announced."
        )
    files.checksums += [Checksum(number, c.offset, c.length, c.crc, c.name) for c in checksums]
    return piece_of(view, place(view), number, start)


def _declared(pairs: Any, path: str) -> Iterator[tuple[str, _Declared]]:
    """Every tensor of the metadata; what was pickled whole (numbers, lists) is no tensor."""
    for key, value in _pairs(pairs, path):
        fields = _fields(value)
        if not isinstance(key, str) or "chunks" not in fields:
            continue
        shape = checked_shape(_size(fields.get("size")), key, path)
        properties = fields.get("properties")
        state = properties.state if isinstance(properties, Call) else None
        symbol = (
            state[0] if isinstance(state, tuple) and state else _fields(properties).get("dtype")
        )
        try:
            element = Element(symbol.name if isinstance(symbol, Global) else "")
        except ValueError:
            raise GradwatchError(
                f"{path}: {key[:80]!r} has elements of type {str(symbol)[:40]!r}, "
                "which are not measured."
            ) from None
        chunks = []
        for chunk in fields["chunks"] if isinstance(fields["chunks"], list) else []:
            box = _fields(chunk)
            start = checked_shape(_size(box.get("offsets")), key, path)
            sizes = checked_shape(_size(box.get("sizes")), key, path)
            if len(start) != len(shape) or any(
                s + n > whole for s, n, whole in zip(start, sizes, shape, strict=True)
            ):
                raise GradwatchError(f"{path}: a part of {key[:80]!r} lies outside of it.")
            chunks.append((start, sizes))
        yield key, _Declared(element, shape, chunks)


def _places(pairs: Any, path: str) -> Iterator[tuple[_Key, tuple[str, int, int]]]:
    """Name and offset of a piece → file, offset and length of its bytes."""
    for key, value in _pairs(pairs, path):
        where, info = _fields(key), _fields(value)
        name, offset = where.get("fqn"), where.get("offset")
        place = (info.get("relative_path"), info.get("offset"), info.get("length"))
        if info.get("transform_descriptors"):
            raise GradwatchError(f"{path}: its files are compressed; they are not read.")
        if (
            isinstance(name, str)
            and offset is not None
            and isinstance(place[0], str)
            and type(place[1]) is int
            and type(place[2]) is int
        ):
            yield (name, checked_shape(_size(offset), name, path)), (place[0], place[1], place[2])


def _pairs(value: Any, path: str) -> list[tuple[Any, Any]]:
    if not isinstance(value, Pairs) or len(value.pairs) > 4 * MAX_TENSORS:
        raise GradwatchError(f"{path} is not the metadata of a distributed checkpoint.")
    return value.pairs


def _fields(value: Any) -> dict[str, Any]:
    """The attributes an object would have; also of frozen dataclasses with slots."""
    state = value.state if isinstance(value, Call) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1] or state[0]
    if not isinstance(state, Pairs):
        return {}
    return {key: item for key, item in state.pairs if isinstance(key, str)}


def _size(value: Any) -> Any:
    if isinstance(value, Call) and str(value.function) == "torch.Size" and value.arguments:
        return value.arguments[0]
    return value
